// What a handler puts into a stream: copies of what lies on the device, and behind them what has them published: a
// kernel that sets a flag, for records, or a host function, where the stream has to wait for the host.
//
// The thread that launches calls everything here that is not said to be another's. It never waits for the stream.
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

// Called when the stream has come by, with what was copied, in a host function or in the thread of arrivals.h: it must
// not throw, nor call the driver. It is destroyed when it has run, and so keeps alive what it has copies of.
using Publish = std::function<void(Span *operands, size_t count)>;

// Has the memory of a launch of `buffers`, and the kernel, made ready, before the program begins: the driver may wait
// for the device there.
void PrepareLaunch(const Driver &driver, Stream stream, const Span *buffers, size_t count);

// Puts copies of `buffers`, whose addresses are the device's, into the stream, and has `publish` called when they are
// there: by the kernel of kernel.h, and by a host function where the driver cannot make that and when the process ends.
// Each copy begins at a multiple of 8. Throws DriverError; then `publish` is not called.
void Launch(const Driver &driver, Stream stream, const Span *buffers, size_t count, Publish publish);

// As Launch(), by a host function, which the stream waits for: what it publishes is there when the program is over.
// Records of programs that JAX dispatches need that, since nothing but the program's end says that there are no more.
void LaunchByHostFunction(const Driver &driver, Stream stream, const Span *buffers, size_t count, Publish publish);

// As Publish, and gives results, of which it writes each byte.
using Compute = std::function<void(Span *operands, size_t count, const std::vector<Out> &results)>;

// As Launch(), and puts copies of the results behind that into the stream, to where `results` lie on the device.
void LaunchWithResults(const Driver &driver, Stream stream, const Span *buffers, size_t count,
                       const std::vector<Out> &results, Compute compute);

// The answer to a call: the thread that launches waits for it on the host, puts the results into the stream behind what
// is there, and goes on.
//
// The stream itself does not wait. Programs that the callback runs on the same device come behind it in this stream, so
// that a stream that waits for the callback would wait for itself. And when the wait is over XLA takes no error any
// more. XLA waits in this thread in any case: its custom calls on GPUs have no futures that do without.
class Answered {
public:
  // `results`: where the program wants them, in the device's memory.
  Answered(const Driver &driver, std::vector<Out> results);
  Answered(const Answered &) = delete;

  // The thread that answers. The program goes on, in the thread that launches, when go_on() is called: `failed` as a
  // Continuation's.
  void take(const Answer &answer);
  void go_on(const std::string &failed);
  void fail(const std::string &why) { go_on(why); }
  // No answer can come any more. Does nothing if one has come.
  void give_up();

  // Waits. Returns what the callback failed with; empty: nothing. Throws DriverError if the stream fails meanwhile.
  std::string wait(const Driver &driver, Stream stream);
  // Afterwards: puts the results into the stream.
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
