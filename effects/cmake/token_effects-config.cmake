# find_package(token_effects CONFIG REQUIRED) gives the target token_effects::handlers: the headers for handlers of
# custom calls, ours and XLA's. Find it with
#
#   cmake -Dtoken_effects_DIR="$(python -c 'import effects; print(effects.cmake_dir())')" ...
#
# The Python whose JAX is meant is `Python_EXECUTABLE`, or the one that CMake finds.

if(TARGET token_effects::handlers)
  return()
endif()

if(NOT Python_EXECUTABLE)
  find_package(Python COMPONENTS Interpreter REQUIRED)
endif()
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import jax; print(jax.ffi.include_dir())"
  OUTPUT_VARIABLE _token_effects_xla OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _token_effects_failed)
if(_token_effects_failed)
  set(token_effects_FOUND FALSE)
  set(token_effects_NOT_FOUND_MESSAGE
    "JAX cannot be imported by ${Python_EXECUTABLE}. XLA's headers come with it. Set Python_EXECUTABLE to the Python that has it.")
  return()
endif()

add_library(token_effects::handlers INTERFACE IMPORTED)
target_compile_features(token_effects::handlers INTERFACE cxx_std_17)
target_include_directories(token_effects::handlers INTERFACE "${CMAKE_CURRENT_LIST_DIR}/../include")
target_include_directories(token_effects::handlers SYSTEM INTERFACE "${_token_effects_xla}")
