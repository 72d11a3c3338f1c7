#include "operations.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace effects {

Bytes::Bytes(const Span &span) : block(AllocateBlock(span.size)), size(span.size) {
  if (size != 0) std::memcpy(block.get(), span.data, size);
}

namespace {

constexpr char kOtherSize[] = "An operation is done that was started with results of another size. A future is done "
                              "as what was started. Look for where its ticket is passed on as that of another one.";

std::string Unknown(std::string_view where) {
  return "The operation that is done at " + std::string(where) +
         " was not started, or was done before. A future is done once, in the program that started it. Look for where "
         "it is done twice.";
}

std::string CopyTo(const Out &out, const std::byte *data, size_t size) {
  if (out.size != size) return kOtherSize;
  if (size != 0) std::memcpy(out.data, data, size);
  return {};
}

} // namespace

bool Operations::Inbox::is_complete() const {
  for (const uint32_t sender : senders)
    if (parts.count(sender) == 0) return false;
  return true;
}

std::string Operations::Operation::give(uint32_t lane, const std::vector<Out> &outs) const {
  if (values.size() != outs.size() || lane >= lanes) return kOtherSize;
  for (size_t i = 0; i < outs.size(); ++i) {
    const size_t size = values[i].size / lanes;
    if (std::string wrong = CopyTo(outs[i], values[i].block.get() + lane * size, size); !wrong.empty()) return wrong;
  }
  return {};
}

uint32_t Operations::add(const Program &program, int32_t device, Operation operation) {
  OfProgram &of = programs_[program];
  any_.store(programs_.size(), std::memory_order_relaxed);
  const uint32_t number = ++of.started[device];
  of.open.emplace(std::make_pair(device, number), std::move(operation));
  return number;
}

uint32_t Operations::start(const Program &program, int32_t device, bool replicated) {
  std::lock_guard lock(mutex_);
  OfProgram &of = programs_[program];
  const uint32_t number = ++(replicated ? of.replicated : of.started)[device];
  any_.store(programs_.size(), std::memory_order_relaxed);
  return number;
}

std::optional<uint32_t> Operations::started(const Program &program, int32_t device) {
  std::lock_guard lock(mutex_);
  const auto found = programs_.find(program);
  if (found == programs_.end() || !found->second.failed.empty()) return std::nullopt;
  if (device != kAllDevices) return found->second.started[device];
  uint32_t most = 0;
  for (const auto &[each, count] : found->second.replicated) most = std::max(most, count);
  return most;
}

uint32_t Operations::keep(const Program &program, int32_t device, const Span *values, size_t count, uint32_t lanes,
                          bool optional) {
  Operation operation;
  operation.optional = optional;
  operation.lanes = operation.lanes_left = lanes;
  for (size_t i = 0; i < count; ++i) operation.values.emplace_back(values[i]);
  std::lock_guard lock(mutex_);
  return add(program, device, std::move(operation));
}

uint32_t Operations::post(const Program &program, int32_t device, const Exchange &exchange, bool optional) {
  std::vector<std::vector<Bytes>> sent; // copied before the lock is taken
  for (const auto &[receiver, parts] : exchange.sent) sent.emplace_back(parts.begin(), parts.end());
  std::vector<Inbox> complete;
  uint32_t number;
  {
    std::lock_guard lock(mutex_);
    OfProgram &of = programs_[program];
    const uint32_t time = of.exchanged[{device, exchange.call}]++;
    for (size_t i = 0; i < sent.size(); ++i) {
      const InboxKey key{exchange.call, time, exchange.group, exchange.sent[i].first};
      Inbox &inbox = of.inboxes[key];
      inbox.parts.emplace(exchange.rank, std::move(sent[i]));
      if (!inbox.done || !inbox.is_complete()) continue;
      complete.push_back(std::move(inbox));
      of.inboxes.erase(key);
    }
    Operation operation;
    operation.inbox = InboxKey{exchange.call, time, exchange.group, exchange.rank};
    operation.senders = exchange.senders;
    operation.optional = optional;
    number = add(program, device, std::move(operation));
  }
  // In a thread of its own: fulfilling a promise runs the waiting program's rest inline, and that may wait for this
  // device.
  for (Inbox &inbox : complete) {
    auto shared = std::make_shared<Inbox>(std::move(inbox));
    threads_.run([this, shared] { deliver(std::move(*shared)); });
  }
  return number;
}

void Operations::deliver(Inbox inbox) {
  // All senders' parts have one size and are consecutive.
  std::string error;
  const size_t count = inbox.senders.size();
  for (size_t at = 0; at < inbox.outs.size(); ++at) {
    const Out &out = inbox.outs[at];
    if (count == 0 && out.size != 0) std::memset(out.data, 0, out.size); // no device sends to this one
    for (size_t i = 0; i < count && error.empty(); ++i) {
      const Bytes &part = inbox.parts.at(inbox.senders[i]).at(at);
      error = CopyTo({static_cast<std::byte *>(out.data) + i * (out.size / count), out.size / count}, part.block.get(),
                     part.size);
    }
  }
  inbox.parts.clear();
  inbox.done(error);
}

void Operations::take(const Program &program, int32_t device, uint32_t number, uint32_t lane, std::vector<Out> outs,
                      Done done, std::string_view where) {
  std::optional<Operation> ended; // freed without the lock
  std::optional<Inbox> complete;
  std::string error;
  {
    std::unique_lock lock(mutex_);
    const auto of = programs_.find(program);
    const auto it = of == programs_.end() ? decltype(of->second.open.end()){} : of->second.open.find({device, number});
    if (of == programs_.end() || it == of->second.open.end()) {
      lock.unlock();
      return done(Unknown(where));
    }
    Operation &operation = it->second;
    if (!of->second.failed.empty()) {
      error = of->second.failed;
      of->second.open.erase(it);
    } else if (operation.inbox) {
      Inbox &inbox = of->second.inboxes[*operation.inbox];
      inbox.senders = operation.senders;
      inbox.outs = std::move(outs);
      inbox.done = std::exchange(done, nullptr);
      if (inbox.is_complete()) {
        complete = std::move(inbox);
        of->second.inboxes.erase(*operation.inbox);
      }
      of->second.open.erase(it);
    } else {
      // With the lock held: only other lanes could share the values, and the same thread ends those.
      error = operation.give(lane, outs);
      if (--operation.lanes_left == 0) {
        ended = std::move(operation);
        of->second.open.erase(it);
      }
    }
  }
  if (complete)
    deliver(std::move(*complete));
  else if (done)
    done(error);
}

void Operations::fail(const Program &program, const std::string &why) {
  std::map<InboxKey, Inbox> inboxes;
  {
    std::lock_guard lock(mutex_);
    const auto it = programs_.find(program);
    if (it == programs_.end() || program.thread == kPlainThread) return; // plain operations are not one program's
    if (it->second.failed.empty()) it->second.failed = why;              // later failures follow from it
    inboxes.swap(it->second.inboxes);
  }
  for (auto &[key, inbox] : inboxes)
    if (inbox.done) threads_.run([done = std::move(inbox.done), why] { done(why); });
}

std::optional<size_t> Operations::end(const Program &program) {
  OfProgram ended; // freed without the lock
  std::lock_guard lock(mutex_);
  const auto it = programs_.find(program);
  if (it == programs_.end()) return 0;
  std::swap(ended, it->second);
  programs_.erase(it);
  any_.store(programs_.size(), std::memory_order_relaxed);
  if (!ended.failed.empty()) return std::nullopt;
  size_t not_done = 0;
  for (const auto &[key, operation] : ended.open) not_done += operation.optional ? 0 : 1;
  return not_done;
}

Operations &operations() {
  static auto *const instance = new Operations(); // never destroyed: XLA's threads may outlive static objects
  return *instance;
}

} // namespace effects
