// Custom calls and errors with XLA's functions replaced: the table that handlers are given is built from one of the
// test's own, so that each test sees what reaches XLA.
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "extensions/custom_calls/native/overlay.h"
#include "extensions/custom_calls/native/targets.h"
#include "xla.h"

namespace effects::overlay_test {
namespace {

std::atomic<int> live_errors{0};

XLA_FFI_Error *CreateError(XLA_FFI_Error_Create_Args *args) {
  ++live_errors;
  return new XLA_FFI_Error{args->message, args->errc};
}
void DestroyError(XLA_FFI_Error_Destroy_Args *args) {
  --live_errors;
  delete args->error;
}
XLA_FFI_Error *CreateFuture(XLA_FFI_Future_Create_Args *args) {
  args->future = new XLA_FFI_Future;
  return nullptr;
}
XLA_FFI_Error *CompleteFuture(XLA_FFI_Future_SetAvailable_Args *args) {
  args->future->available = true;
  return nullptr;
}
XLA_FFI_Error *FailFuture(XLA_FFI_Future_SetError_Args *args) {
  args->future->error = args->error;
  return nullptr;
}

// A table of a later version, which has more functions than ours was compiled with.
struct LaterApi {
  XLA_FFI_Api known{};
  uint64_t added = 0x1122334455667788;
};

const XLA_FFI_Api &Xla() {
  static const LaterApi *const api = [] {
    auto *made = new LaterApi;
    made->known.struct_size = sizeof(LaterApi);
    made->known.XLA_FFI_Error_Create = &CreateError;
    made->known.XLA_FFI_Error_Destroy = &DestroyError;
    made->known.XLA_FFI_Future_Create = &CreateFuture;
    made->known.XLA_FFI_Future_SetAvailable = &CompleteFuture;
    made->known.XLA_FFI_Future_SetError = &FailFuture;
    return made;
  }();
  return api->known;
}

XLA_FFI_Error *NewError(const XLA_FFI_Api &api, const std::string &message, XLA_FFI_Error_Code code) {
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message.c_str(), code};
  return api.XLA_FFI_Error_Create(&args);
}

void Destroy(XLA_FFI_Error *error) {
  XLA_FFI_Error_Destroy_Args args{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  OverlayOf(&Xla())->XLA_FFI_Error_Destroy(&args);
}

// The number at the end of an error's text.
uint64_t NumberIn(const std::string &text) {
  const std::string mark = "(custom call failure ";
  const size_t at = text.rfind(mark);
  CHECK(at != std::string::npos);
  return std::stoull(text.substr(at + mark.size()));
}

// What a handler's error becomes: XLA gets its code, and a text with whose it is; who asks gets all of it, once.
TEST(test_error_names_its_call) {
  const XLA_FFI_Api &api = *OverlayOf(&Xla());
  XLA_FFI_Error *const error =
      FailWith(&Xla(), "solve", "model.py:7", NewError(api, "singular", XLA_FFI_Error_Code_OUT_OF_RANGE));
  CHECK(error->code == XLA_FFI_Error_Code_OUT_OF_RANGE);
  CHECK(error->message.rfind("Custom call `solve` at model.py:7 failed: singular (custom call failure ", 0) == 0);
  CHECK_EQ(live_errors.load(), 1); // the handler's own is freed
  const uint64_t number = NumberIn(error->message);
  const std::optional<CustomCallFailure> failure = custom_call_failures().take(number);
  CHECK(failure.has_value() && failure->target == "solve" && failure->where == "model.py:7");
  CHECK(failure->message == "singular" && failure->code == XLA_FFI_Error_Code_OUT_OF_RANGE);
  CHECK(!custom_call_failures().take(number).has_value());
  Destroy(error);
  CHECK_EQ(live_errors.load(), 0);
}

// Handlers fail on several devices at a time, and each error has its own text.
TEST(test_errors_of_several_threads) {
  const XLA_FFI_Api &api = *OverlayOf(&Xla());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 2000; ++round) {
        const std::string message = std::to_string(thread) + "/" + std::to_string(round);
        std::vector<XLA_FFI_Error *> made;
        for (int i = 0; i < 20; ++i) made.push_back(NewError(api, message, XLA_FFI_Error_Code_ABORTED));
        for (size_t i = 0; i < made.size(); ++i) {
          if (i % 2 == 0) { // the handler's own, which XLA never has
            Destroy(made[i]);
            continue;
          }
          XLA_FFI_Error *const error = FailWith(&Xla(), "t", "w", made[i]);
          CHECK(error->message.rfind("Custom call `t` at w failed: " + message + " (", 0) == 0);
          Destroy(error);
        }
      }
    });
  for (std::thread &thread : threads) thread.join();
  CHECK_EQ(live_errors.load(), 0);
}

// An error that was not made through our table has no text that we know.
TEST(test_error_that_was_made_elsewhere) {
  OverlayOf(&Xla());
  XLA_FFI_Error *const error = FailWith(&Xla(), "t", "w", NewError(Xla(), "hidden", XLA_FFI_Error_Code_ABORTED));
  CHECK(error->code == XLA_FFI_Error_Code_UNKNOWN);
  CHECK(error->message.find("The handler returned an error that was made elsewhere.") != std::string::npos);
  Destroy(error);
  CHECK_EQ(live_errors.load(), 0);
}

// Python reads XLA's errors as UTF-8, and strictly: what is not ASCII becomes question marks.
TEST(test_text_of_an_error_is_readable) {
  const XLA_FFI_Api &api = *OverlayOf(&Xla());
  XLA_FFI_Error *const error = FailWith(&Xla(), "t", "w", NewError(api, "a\xff \xc3\xa9", XLA_FFI_Error_Code_INTERNAL));
  CHECK(error->message.find("Custom call `t` at w failed: a? ?? (custom call failure ") == 0);
  Destroy(error);
}

// A process may have several XLAs, as with a plugin for GPUs. Each frees its own errors, and has what they said.
TEST(test_several_xlas) {
  static int live_elsewhere = 0;
  static XLA_FFI_Api other = Xla();
  other.struct_size = sizeof(XLA_FFI_Api);
  other.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args *args) {
    ++live_elsewhere;
    return new XLA_FFI_Error{args->message, args->errc};
  };
  other.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args *args) {
    --live_elsewhere;
    delete args->error;
  };
  const XLA_FFI_Api &first = *OverlayOf(&Xla()), &second = *OverlayOf(&other);
  CHECK(&first != &second && &second == OverlayOf(&other) && &first == OverlayOf(&Xla()));
  XLA_FFI_Error *const here = FailWith(&Xla(), "a", "w", NewError(first, "of the first", XLA_FFI_Error_Code_ABORTED));
  XLA_FFI_Error *const there =
      FailWith(&other, "b", "w", NewError(second, "of the second", XLA_FFI_Error_Code_ABORTED));
  CHECK(here->message.find("of the first") != std::string::npos);
  CHECK(there->message.find("of the second") != std::string::npos);
  CHECK_EQ(live_errors.load(), 1);
  CHECK_EQ(live_elsewhere, 1);
  Destroy(here);
  XLA_FFI_Error_Destroy_Args args{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, there};
  second.XLA_FFI_Error_Destroy(&args);
  CHECK_EQ(live_errors.load(), 0);
  CHECK_EQ(live_elsewhere, 0);
}

// A later version of XLA gives its own new functions to handlers that know them, and what is not ours stays XLA's.
TEST(test_table_of_a_later_version_is_copied_whole) {
  const XLA_FFI_Api *const api = OverlayOf(&Xla());
  CHECK(api != &Xla() && api == OverlayOf(&Xla()));
  CHECK_EQ(api->struct_size, sizeof(LaterApi));
  uint64_t added;
  std::memcpy(&added, reinterpret_cast<const char *>(api) + offsetof(LaterApi, added), sizeof added);
  CHECK_EQ(added, uint64_t{0x1122334455667788});
  CHECK(api->extension_start != Xla().extension_start);
}

// A future that no call of ours made goes to XLA as it is, whether it is completed or fails.
TEST(test_future_of_another) {
  const XLA_FFI_Api &api = *OverlayOf(&Xla());
  const auto create = [&] {
    XLA_FFI_Future_Create_Args args{XLA_FFI_Future_Create_Args_STRUCT_SIZE, nullptr, nullptr};
    CHECK(api.XLA_FFI_Future_Create(&args) == nullptr);
    return std::unique_ptr<XLA_FFI_Future>(args.future);
  };
  const auto done = create(), failed = create();
  XLA_FFI_Future_SetAvailable_Args complete{XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, nullptr, done.get()};
  CHECK(api.XLA_FFI_Future_SetAvailable(&complete) == nullptr && done->available);
  XLA_FFI_Error *const error = NewError(api, "late", XLA_FFI_Error_Code_ABORTED);
  XLA_FFI_Future_SetError_Args fail{XLA_FFI_Future_SetError_Args_STRUCT_SIZE, nullptr, failed.get(), error};
  CHECK(api.XLA_FFI_Future_SetError(&fail) == nullptr && failed->error == error);
  CHECK(error->message == "late");
  Destroy(error);
}

// Failures that nobody asks for are kept up to a number; the oldest go first.
TEST(test_failures_are_bounded) {
  CustomCallFailures failures;
  for (int i = 0; i < 1025; ++i) failures.add({0, "t", "w", std::to_string(i), 1});
  CHECK(!failures.take(1).has_value());
  CHECK(failures.take(2)->message == "1" && failures.take(1025)->message == "1024");
}

// A name has one handler on each platform, and keeps it.
TEST(test_name_has_one_handler) {
  Targets known;
  const UserHandler one = [](XLA_FFI_CallFrame *) -> XLA_FFI_Error * { return nullptr; };
  const UserHandler other = [](XLA_FFI_CallFrame *frame) -> XLA_FFI_Error * {
    return reinterpret_cast<XLA_FFI_Error *>(frame->ctx);
  };
  known.set("a", "Host", one);
  known.set("a", "Host", other);
  known.set("a", "CUDA", other);
  CHECK(known.find("a", "Host") == one && known.find("a", "CUDA") == other && known.find("b", "CUDA") == nullptr);
}

} // namespace
} // namespace effects::overlay_test
