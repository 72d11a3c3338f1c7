// Gates between programs: handlers wait for those of earlier programs of their thread, and only for these.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "dispatch/native/order/gates.h"

namespace effects::gates_test {
namespace {

constexpr uint32_t kThread = 3, kOther = 4;
constexpr int64_t kDomain = 11, kOtherDomain = 12;
constexpr std::chrono::milliseconds kLong{60'000}, kNot{0};

// What has gone on, in its order.
class Gone {
public:
  Gates::GoOn note(int which) {
    return [this, which] {
      std::lock_guard lock(mutex_);
      gone_.push_back(which);
      came_.notify_all();
    };
  }
  std::vector<int> so_far() {
    std::lock_guard lock(mutex_);
    return gone_;
  }
  std::vector<int> wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return gone_.size() >= count; });
    return gone_;
  }

private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<int> gone_;
};

TEST(test_gates_open_when_earlier_programs_are_over) {
  Gates gates;
  Gone gone;
  gates.pass(kThread, 1, 0, kDomain, gone.note(1));
  gates.shut(kThread, 1, {kDomain});
  gates.shut(kThread, 2, {kDomain});
  gates.pass(kThread, 3, 0, kDomain, gone.note(3));
  gates.pass(kThread, 3, 0, kOtherDomain, gone.note(30)); // nothing before it
  gates.pass(kOther, 9, 0, kDomain, gone.note(9));        // nor here
  CHECK((gone.so_far() == std::vector<int>{1, 30, 9}));
  gates.open(kThread, 1);
  CHECK(gone.so_far().size() == 3);
  gates.open(kThread, 1); // again, which says nothing new
  gates.pass(kThread, 2, 0, kDomain, gone.note(2));
  CHECK(gone.so_far().back() == 2);
  gates.open(kThread, 2);
  CHECK(gone.wait_for(5).back() == 3);
  gates.open(kThread, 3);
  gates.open(kOther, 9);
  CHECK(!gates.any());
}

TEST(test_gates_do_not_wait_for_later_programs) {
  Gates gates;
  Gone gone;
  gates.shut(kThread, 0, {kDomain});
  gates.pass(kThread, 0xFFFFFFFF, 0, kDomain, gone.note(1)); // the number before
  CHECK(gone.so_far().size() == 1);
  gates.pass(kThread, 1, 0, kDomain, gone.note(2));
  gates.open(kThread, 0xFFFFFFFF);
  CHECK(gone.so_far().size() == 1);
  gates.open(kThread, 0);
  CHECK(gone.wait_for(2).back() == 2);
}

TEST(test_gates_know_what_has_begun) {
  Gates gates;
  Gone gone;
  CHECK(gates.wait_for_begun(kThread, kNot));
  gates.shut(kThread, 5, {kDomain, kOtherDomain});
  CHECK(!gates.wait_for_begun(kThread, kNot));
  CHECK(gates.wait_for_begun(kOther, kNot));
  for (int device = 0; device < 2; ++device) {
    gates.pass(kThread, 5, 2, kDomain, gone.note(device));
    CHECK(!gates.wait_for_begun(kThread, kNot));
    gates.pass(kThread, 5, 2, kOtherDomain, gone.note(device));
  }
  CHECK(gates.wait_for_begun(kThread, kNot));
  gates.shut(kThread, 6, {kDomain});
  std::thread over([&] { gates.open(kThread, 6); });
  CHECK(gates.wait_for_begun(kThread, kLong));
  over.join();
}

// Programs come to their gates and end in threads of their own: each goes on after all before it are over.
TEST(test_gates_from_many_threads) {
  for (int round = 0; round < 200; ++round) {
    Gates gates;
    Gone gone;
    constexpr uint32_t kCount = 6;
    std::vector<std::thread> devices;
    for (uint32_t epoch = 0; epoch < kCount; ++epoch) gates.shut(kThread, epoch, {kDomain});
    for (uint32_t epoch = 0; epoch < kCount; ++epoch)
      devices.emplace_back([&, epoch] {
        gates.pass(kThread, epoch, 0, kDomain, [&, epoch] {
          gone.note(static_cast<int>(epoch))();
          gates.open(kThread, epoch);
        });
      });
    const std::vector<int> order = gone.wait_for(kCount);
    for (std::thread &device : devices) device.join();
    for (uint32_t epoch = 0; epoch < kCount; ++epoch) CHECK(order[epoch] == static_cast<int>(epoch));
    while (gates.any()) std::this_thread::yield();
  }
}

} // namespace
} // namespace effects::gates_test
