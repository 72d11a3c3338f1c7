// The launches of a handler: copies from the device, and then either a kernel that sets a flag, for records, or a host
// function, if the stream must wait for the host.
//
// For the launching thread, unless marked otherwise. It never waits for the stream.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dispatch/native/xla/operands.h"
#include "driver.h"
#include "pinned.h"

namespace effects::cuda {

// Called with the copies when the stream has reached them, in a host function or in the thread of arrivals.h: it must
// not throw, nor call the driver. It is destroyed after it has run, so it may own the buffers' objects.
using Publish = std::function<void(Span *operands, size_t count)>;

// Prepares the memory of a launch of `buffers`, and the kernel, before the program begins: the driver may wait for the
// device there.
void PrepareLaunch(const Driver &driver, Stream stream, const Span *buffers, size_t count);

// Launches copies of `buffers` (device addresses), and calls `publish` when they are done: after the kernel of
// kernel.h, or in a host function if the driver cannot compile that, or the process is ending. Each copy begins at a
// multiple of 8. Throws DriverError; then `publish` is not called.
void Launch(const Driver &driver, Stream stream, const Span *buffers, size_t count, Publish publish);

// As Launch(), by a host function, for which the stream waits: its records are published before the program is over.
// Records of programs that JAX dispatches need that, since only the program's end says that there are no more.
void LaunchByHostFunction(const Driver &driver, Stream stream, const Span *buffers, size_t count, Publish publish);

// As Publish, and writes results, every byte of them.
using Compute = std::function<void(Span *operands, size_t count, const std::vector<Out> &results)>;

// As Launch(), and then launches copies of the results to `results` on the device.
void LaunchWithResults(const Driver &driver, Stream stream, const Span *buffers, size_t count,
                       const std::vector<Out> &results, Compute compute);

// The answer to a call: the launching thread waits for it on the host, launches copies of the results, and continues.
//
// The stream itself does not wait: programs that the callback runs on the same device are queued in this stream, which
// would then wait for itself; and after such a wait XLA takes no error. XLA waits in this thread anyway: its custom
// calls on GPUs have no asynchronous futures.
class Answered {
public:
  // `results`: the result buffers, in the device's memory.
  Answered(const Driver &driver, std::vector<Out> results);
  Answered(const Answered &) = delete;

  // The answering thread. The program continues, in the launching thread, when go_on() is called. `failed`: as for a
  // Continuation.
  void take(const Answer &answer);
  void go_on(const std::string &failed);
  void fail(const std::string &why) { go_on(why); }
  // No answer can come any more. A no-op if one has come.
  void give_up();

  // Waits. Returns the callback's error, or an empty text. Throws DriverError if the stream fails meanwhile.
  std::string wait(const Driver &driver, Stream stream);
  // Afterwards: launches the copies of the results.
  void launch_results(const Driver &driver, Stream stream);

private:
  const std::vector<Out> results_;
  Slot slot_;             // for the results, pinned
  std::vector<Out> outs_; // their places in it

  std::mutex mutex_; // guards all below, and the slot until it is done
  std::condition_variable answered_;
  bool done_ = false;
  std::string error_;
};

} // namespace effects::cuda
