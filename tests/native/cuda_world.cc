#include "cuda_world.h"

#include <cstring>
#include <thread>
#include <utility>

#include "dispatch/native/xla/host_failures.h"
#include "dispatch/native/xla/runtime.h"
#include "extensions/cuda/native/kernel.h"

namespace effects {

Value ValueOf(const DeviceToken &token) {
  std::string bytes(token.has_group ? kReplicaTokenSize : kTokenSize, '\0');
  StoreToken(token, bytes.data());
  return {XLA_FFI_DataType_U32, {static_cast<int64_t>(bytes.size() / 4)}, bytes};
}

Value Ints(std::vector<int32_t> numbers) {
  return {XLA_FFI_DataType_S32,
          {static_cast<int64_t>(numbers.size())},
          std::string(reinterpret_cast<const char *>(numbers.data()), numbers.size() * sizeof(int32_t))};
}

Value RawBytes(size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes += static_cast<char>('a' + i % 26);
  return {XLA_FFI_DataType_U8, {static_cast<int64_t>(size)}, bytes};
}

OnDevice::OnDevice(On on, uint32_t thread, uint32_t epoch, int32_t device) : on_(on), device_(device) {
  // As XLA's registry does.
  LoadedSite::id.type_id = 1;
  cuda::LoadedCudaSite::id.type_id = 2;
  const uint32_t cell = token_cells().add();
  token_cells().set(cell, thread, epoch);
  const std::string placed = ValueOf(check::MakeToken(kPlacedThread, 0, cell, 0)).bytes;
  token = LoadToken(placed.data(), placed.size());
  if (on_ == On::kCpu) return;
  static const bool loaded = [] {
    cuda::use_driver("the stand-in", &StandIn_Find);
    return true;
  }();
  CHECK(loaded);
  stream = StandIn_NewStream();
  if (on_ == On::kCudaWithoutKernel) {
    StandIn_FailCall("cuModuleLoadData", 0, 221);
    const cuda::InContextOf context(cuda::driver(), static_cast<cuda::Stream>(stream));
    CHECK(cuda::KernelOf(cuda::driver(), static_cast<cuda::Stream>(stream)) == nullptr);
    CHECK_EQ(host_failures().take_warnings().size(), size_t{1});
  }
}

OnDevice::~OnDevice() {
  if (stream != nullptr) StandIn_EndStream(stream);
  unload();
}

void OnDevice::unload() {
  for (auto &[key, loaded] : loaded_) {
    if (on_ == On::kCpu)
      delete static_cast<LoadedSite *>(loaded->state);
    else
      delete static_cast<cuda::LoadedCudaSite *>(loaded->state);
  }
  loaded_.clear();
}

void OnDevice::synchronize() {
  if (stream != nullptr) StandIn_Synchronize(stream);
}

void *OnDevice::put(const std::string &bytes) {
  if (on_ != On::kCpu) {
    const uint64_t address = StandIn_Allocate(bytes.size());
    std::memcpy(StandIn_Memory(address), bytes.data(), bytes.size());
    return reinterpret_cast<void *>(address);
  }
  memory_.push_back(std::make_unique<std::string>(bytes));
  return memory_.back()->data();
}

std::string OnDevice::bytes_at(void *address, size_t size) {
  if (on_ != On::kCpu) address = StandIn_Memory(reinterpret_cast<uint64_t>(address));
  return std::string(static_cast<const char *>(address), size);
}

void *OnDevice::handler(const char *target, const char *stage) {
  for (const Handler &one : on_ == On::kCpu ? handlers() : cuda::handlers())
    if (std::strcmp(one.target, target) == 0 && std::strcmp(one.stage, stage) == 0) return one.function;
  return nullptr;
}

Loaded &OnDevice::load(const char *target, uint64_t site, int64_t traits, std::string &error, uint32_t ahead) {
  std::unique_ptr<Loaded> &loaded = loaded_[{target, site, traits, ahead}];
  if (loaded != nullptr) return *loaded;
  loaded = std::make_unique<Loaded>(Loaded{device_, stream, nullptr});
  if (void *const on_load = handler(target, "instantiate")) {
    std::map<std::string, Attribute> attributes{
        {"site", static_cast<int64_t>(site)}, {"traits", traits}, {"description", std::string(kDescription)}};
    if (ahead != 0) attributes[attribute::kAhead] = int64_t{ahead};
    error = Frame(*loaded).attributes(std::move(attributes)).call(on_load, XLA_FFI_ExecutionStage_INSTANTIATE);
  }
  return *loaded;
}

// A program that counts by itself adds to its token now and then: here before every third effect.
uint32_t OnDevice::ahead() const { return on_ == On::kCpu ? 0 : token.token.index % 3; }

std::string OnDevice::run(Call call, std::map<std::string, Attribute> attributes) {
  Frame frame(*call.loaded);
  std::vector<void *> in, out;
  for (const Value &operand : call.operands) {
    in.push_back(put(operand.bytes));
    frame.operand(in.back(), operand.type, operand.sizes);
  }
  const std::vector<Value> outs = call.has_results ? results : std::vector<Value>{};
  for (const Value &each : outs) {
    out.push_back(put(each.bytes));
    frame.result(out.back(), each.type, each.sizes);
  }
  // On CUDA the token has the operand's memory, and comes as it is. A CPU's handler writes what the program makes of
  // it.
  const Value given = call.operands.empty() ? Value{} : call.operands[call.given_back], next = ValueOf(call.next);
  void *token_at = nullptr;
  if (call.has_token) {
    token_at = on_ != On::kCpu ? in[call.given_back] : put(std::string(next.bytes.size(), '?'));
    const Value &result = on_ != On::kCpu ? given : next;
    frame.result(token_at, result.type, result.sizes);
  }
  std::string error = frame.attributes(std::move(attributes)).call(handler(call.target, "execute"));
  if (XLA_FFI_Future *const future = frame.future) {
    while (!future->available && future->error == nullptr) std::this_thread::yield();
    if (XLA_FFI_Error *const late = future->error) {
      error = late->message;
      delete late;
    }
    delete future;
  }
  if (!error.empty()) return error;
  synchronize();
  if (call.has_token) {
    const std::string &expected = on_ != On::kCpu ? given.bytes : next.bytes;
    CHECK(bytes_at(token_at, expected.size()) == expected);
    token = call.next;
  }
  for (size_t i = 0; i < outs.size(); ++i) results[i].bytes = bytes_at(out[i], outs[i].bytes.size());
  return {};
}

namespace {

DeviceToken After(DeviceToken token, const TokenStep &step) {
  Take(step, token);
  return token;
}

std::vector<Value> With(std::vector<Value> first, const std::vector<Value> &others) {
  first.insert(first.end(), others.begin(), others.end());
  return first;
}

// The token without so many effects.
Value Behind(DeviceToken token, uint32_t effects) {
  token.token.index -= effects;
  return ValueOf(token);
}

// As lowering gives them; on a CPU the handler counts.
int64_t Traits(On on, int64_t traits, uint32_t devices) {
  return traits | int64_t{devices} << kDevicesShift | (on != On::kCpu ? int64_t{kRecordIsCounted} : 0);
}

} // namespace

std::string OnDevice::record(uint64_t site, int64_t traits, std::vector<Value> operands, uint32_t devices) {
  DeviceToken next = token;
  if ((traits & kRecordLeaves) != 0) {
    next = After(next, kLeaveStep);
  } else {
    if ((traits & kRecordEnters) != 0) next = After(next, kEnterStep);
    if ((traits & kRecordIsOrdered) != 0) next = After(next, kCountStep);
  }
  std::string error;
  Loaded &loaded = load(kRecordTarget, site, Traits(on_, traits, devices), error, ahead());
  if (!error.empty()) return error;
  return run({kRecordTarget, &loaded, With({Behind(token, ahead())}, operands), 0, next});
}

std::string OnDevice::last_record(uint64_t site, int64_t traits, const DeviceToken &around,
                                  std::vector<Value> operands) {
  std::string error;
  Loaded &loaded = load(kRecordTarget, site, Traits(on_, traits, 0), error, ahead());
  return run({kRecordTarget, &loaded, With({Behind(token, ahead()), ValueOf(around)}, operands), 1,
              After(around, kLeaveStep)});
}

std::string OnDevice::call(uint64_t site, int64_t traits, std::vector<Value> operands, uint32_t devices) {
  std::string error;
  Loaded &loaded = load(kCallTarget, site, Traits(on_, traits, devices), error, ahead());
  if (!error.empty()) return error;
  const DeviceToken next = (traits & kRecordIsOrdered) != 0 ? After(token, kCountStep) : token;
  return run({kCallTarget, &loaded, With({Behind(token, ahead())}, operands), 0, next, true, /*has_results=*/true});
}

std::string OnDevice::enter(uint32_t devices, bool has_group, uint32_t replica) {
  std::string error;
  DeviceToken next = After(token, kEnterStep);
  std::vector<Value> operands{ValueOf(token)};
  if ((next.has_group = has_group)) {
    next.replicas = {0, replica};
    for (uint32_t number : {uint32_t{0}, replica}) operands.push_back(Ints({static_cast<int32_t>(number)}));
  }
  return run({kEnterTarget, &load(kEnterTarget, 0, 0, error), operands, 0, next}, {{"ordered", int64_t{1}},
                                                                                   {"devices", int64_t{devices}},
                                                                                   {"apart", false},
                                                                                   {"parts", has_group},
                                                                                   {"counted", on_ != On::kCpu}});
}

std::string OnDevice::leave(const DeviceToken &around) {
  std::string error;
  return run(
      {kLeaveTarget, &load(kLeaveTarget, 0, 0, error), {ValueOf(token), ValueOf(around)}, 1, After(around, kLeaveStep)},
      {{"ordered", int64_t{1}}, {"counted", on_ != On::kCpu}});
}

std::string OnDevice::skip(uint32_t count) {
  std::string error;
  return run({kSkipTarget, &load(kSkipTarget, 0, 0, error), {ValueOf(token)}, 0, After(token, Counts(count))},
             {{"count", int64_t{count}}, {"counted", on_ != On::kCpu}});
}

std::string OnDevice::close(uint32_t devices) {
  std::string error;
  return run({kCloseTarget, &load(kCloseTarget, 0, 0, error), {ValueOf(token)}, 0, token},
             {{"devices", int64_t{devices}}});
}

std::string OnDevice::plain(uint64_t site, int64_t traits, std::vector<Value> operands) {
  std::string error;
  // Something stands in the place of the runtime's own token.
  if ((traits & kRecordIsOrdered) != 0) operands = With({RawBytes(0)}, operands);
  return run({kPlainTarget, &load(kPlainTarget, site, traits, error), operands, 0, token, /*has_token=*/false});
}

std::string OnDevice::plain_call(uint64_t site, int64_t traits, std::vector<Value> operands) {
  std::string error;
  if ((traits & kRecordIsOrdered) != 0) operands = With({RawBytes(0)}, operands);
  results.push_back(RawBytes(0)); // in the place of the token
  error = run({kPlainCallTarget, &load(kPlainCallTarget, site, traits, error), operands, 0, token,
               /*has_token=*/false, /*has_results=*/true});
  results.pop_back();
  return error;
}

namespace {

void *CudaHandler(const char *target, const char *stage) {
  for (const Handler &one : cuda::handlers())
    if (std::strcmp(one.target, target) == 0 && std::strcmp(one.stage, stage) == 0) return one.function;
  return nullptr;
}

void *Put(const void *data, size_t size) {
  const uint64_t address = StandIn_Allocate(kReplicaTokenSize);
  std::memcpy(StandIn_Memory(address), data, size);
  return reinterpret_cast<void *>(address);
}

} // namespace

Launching::Launching(OnDevice &device, uint64_t site, int64_t traits)
    : load(CudaHandler(kRecordTarget, "instantiate")), begin(CudaHandler(kRecordTarget, "initialize")),
      run(CudaHandler(kRecordTarget, "execute")), loaded_{0, device.stream, nullptr} {
  const std::map<std::string, Attribute> attributes{{"site", static_cast<int64_t>(site)},
                                                    {"traits", traits | kRecordIsCounted},
                                                    {"description", std::string(kDescription)}};
  CHECK(Frame(loaded_).attributes(attributes).call(load, XLA_FFI_ExecutionStage_INSTANTIATE).empty());
}

void Launching::unload() {
  delete static_cast<cuda::LoadedCudaSite *>(loaded_.state);
  loaded_.state = nullptr;
}

std::string Launching::record(const Token &token, int32_t number, size_t token_size) {
  void *const at = Put(&token, sizeof token);
  const int64_t length = static_cast<int64_t>(token_size / sizeof(uint32_t));
  return Frame(loaded_)
      .operand(at, XLA_FFI_DataType_U32, {length})
      .operand(Put(&number, sizeof number), XLA_FFI_DataType_S32, {1})
      .result(at, XLA_FFI_DataType_U32, {length})
      .call(run);
}

std::string Launching::prepare(const Token &token, int32_t number) {
  void *const at = Put(&token, sizeof token);
  return Frame(loaded_)
      .operand(at, XLA_FFI_DataType_U32, {4})
      .operand(Put(&number, sizeof number), XLA_FFI_DataType_S32, {1})
      .result(at, XLA_FFI_DataType_U32, {4})
      .call(begin, XLA_FFI_ExecutionStage_INITIALIZE);
}

std::string Launching::close(const Token &token) {
  void *const at = Put(&token, sizeof token);
  return Frame(loaded_)
      .operand(at, XLA_FFI_DataType_U32, {4})
      .result(at, XLA_FFI_DataType_U32, {4})
      .attributes({{"devices", int64_t{0}}})
      .call(CudaHandler(kCloseTarget, "execute"));
}

std::string Line(const RecordHeader &header, const std::string &payload) {
  const auto number = [](auto value) { return " " + std::to_string(value); };
  std::string line = "site" + number(header.site) + " kind" + number(static_cast<int>(header.kind)) + " flags" +
                     number(header.flags) + " at" + number(header.token.epoch) + number(header.token.phase) +
                     number(header.token.index) + " device" + number(PlaceOf(header.device)) +
                     (header.reply != 0 ? " asks" : "") + " bytes" + number(payload.size()) + ":";
  uint64_t sum = 0;
  for (size_t i = 0; i < payload.size(); ++i) sum = sum * 31 + static_cast<unsigned char>(payload[i]);
  return line + number(sum);
}

std::vector<std::string> Play(const std::vector<std::function<void()>> &programs, size_t epochs) {
  std::vector<std::thread> threads;
  for (const auto &program : programs) threads.emplace_back(program);
  std::vector<std::string> seen;
  size_t ended = 0;
  while (ended < epochs) {
    const Batch batch = drain().next_batch(kPatience);
    for (const Item &item : batch.items) {
      ForEachRecord(item, [&](const RecordHeader &header, const std::string &payload) {
        seen.push_back(Line(header, payload));
        if (header.reply == 0) return;
        const int32_t numbers[] = {7, 8};
        replies().answer(header.reply, {{{numbers, sizeof numbers}, {nullptr, 0}}, {}});
      });
    }
    if (batch.run != Batch::kNoRun) drain().resume(batch.run, batch.run_number);
    ended += batch.finished.size();
  }
  for (std::thread &thread : threads) thread.join();
  return seen;
}

} // namespace effects
