#include "gates.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace effects {

// Epochs are numbered modulo 2^32, and those of a thread that are not over lie close together.
bool Gates::OfThread::must_wait(uint32_t epoch, int64_t domain) const {
  return std::any_of(programs.begin(), programs.end(), [&](const auto &entry) {
    const auto &[other, program] = entry;
    return static_cast<int32_t>(other - epoch) < 0 &&
           std::count(program.domains.begin(), program.domains.end(), domain) != 0;
  });
}

Gates::Program &Gates::find_or_add(OfThread &of_thread, uint32_t epoch) {
  const auto [found, is_new] = of_thread.programs.try_emplace(epoch);
  if (is_new) any_.fetch_add(1, std::memory_order_seq_cst);
  return found->second;
}

void Gates::shut(uint32_t thread, uint32_t epoch, std::vector<int64_t> domains) {
  std::lock_guard lock(mutex_);
  find_or_add(by_thread_[thread], epoch).domains = std::move(domains);
}

void Gates::open(uint32_t thread, uint32_t epoch) {
  std::vector<Waiting> going;
  {
    std::lock_guard lock(mutex_);
    const auto found = by_thread_.find(thread);
    if (found == by_thread_.end() || found->second.programs.erase(epoch) == 0) return;
    any_.fetch_sub(1, std::memory_order_seq_cst);
    OfThread &of_thread = found->second;
    auto &waiting = of_thread.waiting;
    const auto first = std::stable_partition(waiting.begin(), waiting.end(), [&](const Waiting &each) {
      return of_thread.must_wait(each.epoch, each.domain);
    });
    std::move(first, waiting.end(), std::back_inserter(going));
    waiting.erase(first, waiting.end());
    if (of_thread.programs.empty()) by_thread_.erase(found); // then nothing waits
    begun_.notify_all();
  }
  for (Waiting &each : going) threads_.run(std::move(each.go_on));
}

void Gates::pass(uint32_t thread, uint32_t epoch, uint32_t devices, int64_t domain, GoOn go_on) {
  {
    std::lock_guard lock(mutex_);
    OfThread &of_thread = by_thread_[thread];
    Program &program = find_or_add(of_thread, epoch);
    ++program.came;
    program.devices = std::max<uint32_t>(devices, 1);
    begun_.notify_all();
    if (of_thread.must_wait(epoch, domain)) {
      of_thread.waiting.push_back({epoch, domain, std::move(go_on)});
      return;
    }
  }
  go_on();
}

bool Gates::wait_for_begun(uint32_t thread, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return begun_.wait_for(lock, patience, [&] {
    const auto found = by_thread_.find(thread);
    if (found == by_thread_.end()) return true;
    const auto &programs = found->second.programs;
    return std::all_of(programs.begin(), programs.end(), [](const auto &entry) { return entry.second.has_begun(); });
  });
}

} // namespace effects
