// Programs as XLA runs them: calls of handlers, those of a CPU or those of CUDA with the stand-in for the driver, and
// what the drain makes of what they publish.
//
// The handlers publish to the process's own drain. The main thread leads it; programs run in threads of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "dispatch/native/xla/bodies.h"
#include "driver/stand_in.h"
#include "extensions/cuda/native/driver.h"
#include "extensions/cuda/native/handlers.h"
#include "extensions/cuda/native/launch.h"
#include "records.h"
#include "xla.h"

namespace effects {

enum class On {
  kCpu,
  kCudaWithoutKernel, // where the driver cannot make it: by host functions
  kCuda,
};

constexpr char kDescription[] = "{\"effect\":{},\"where\":[\"model.py\",7,\"f\"]}";

struct Value {
  XLA_FFI_DataType type;
  std::vector<int64_t> sizes;
  std::string bytes;
};
Value ValueOf(const DeviceToken &token);
Value Ints(std::vector<int32_t> numbers);
Value RawBytes(size_t size);

// A device, and a program that it runs: one token, which counts as programs do.
class OnDevice {
public:
  // Loads the driver's stand-in before the first.
  OnDevice(On on, uint32_t thread, uint32_t epoch, int32_t device = 0);
  OnDevice(const OnDevice &) = delete;
  ~OnDevice();

  // Each returns the error's text. The token is what the program makes of it, and what a CPU's handler has written.
  std::string record(uint64_t site, int64_t traits, std::vector<Value> operands, uint32_t devices = 0);
  // `around`: the token around the region, in which this is the last record and not the first.
  std::string last_record(uint64_t site, int64_t traits, const DeviceToken &around, std::vector<Value> operands);
  // The results' bytes are in `results` when the call is over.
  std::string call(uint64_t site, int64_t traits, std::vector<Value> operands, uint32_t devices = 0);
  std::string enter(uint32_t devices, bool has_group = false, uint32_t replica = 0);
  std::string leave(const DeviceToken &around);
  std::string skip(uint32_t count);
  std::string close(uint32_t devices = 0);
  std::string plain(uint64_t site, int64_t traits, std::vector<Value> operands);
  std::string plain_call(uint64_t site, int64_t traits, std::vector<Value> operands);

  // The stream, with CUDA; what is in it is done.
  void synchronize();
  // As XLA does when it frees the program.
  void unload();

  DeviceToken token;
  std::vector<Value> results{Ints({0, 0}), RawBytes(0)}; // of the calls
  void *stream = nullptr;

private:
  struct Call {
    const char *target;
    Loaded *loaded;
    std::vector<Value> operands;
    size_t given_back;     // which operand the token is that the call gives back
    DeviceToken next;      // what becomes of it
    bool has_token = true; // else it gives none back
    bool has_results = false;
  };
  std::string run(Call call, std::map<std::string, Attribute> attributes = {});
  Loaded &load(const char *target, uint64_t site, int64_t traits, std::string &error, uint32_t ahead = 0);
  uint32_t ahead() const;
  void *handler(const char *target, const char *stage);
  void *put(const std::string &bytes);
  std::string bytes_at(void *address, size_t size);

  const On on_;
  const int32_t device_;
  std::map<std::tuple<std::string, uint64_t, int64_t, uint32_t>, std::unique_ptr<Loaded>> loaded_;
  std::vector<std::unique_ptr<std::string>> memory_; // of a CPU
};

// A program that is launched: its calls return while the stream stands still. The test counts.
class Launching {
public:
  explicit Launching(OnDevice &device, uint64_t site = 11, int64_t traits = kRecordIsOrdered);
  ~Launching() { unload(); }
  // Frees the program.
  void unload();
  std::string record(const Token &token, int32_t number, size_t token_size = kTokenSize);
  // As before the program begins in which the record is.
  std::string prepare(const Token &token, int32_t number);
  std::string close(const Token &token);

  void *load, *begin, *run; // the handler's stages
private:
  Loaded loaded_;
};

// What a record is, in one line, whichever thread's programs it is of.
std::string Line(const RecordHeader &header, const std::string &payload);

// Runs `programs`, each in a thread of its own, and leads the drain until `epochs` have ended.
// records have left. Answers calls: with the numbers 7 and 8 for an `int32[2]`, and no bytes. Returns what it saw.
std::vector<std::string> Play(const std::vector<std::function<void()>> &programs, size_t epochs);

} // namespace effects
