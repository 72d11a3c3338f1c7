#include "wire.h"

#include <initializer_list>
#include <utility>

#include "../producer/device_token.h"
#include "../wire.h"
#include "batch.h"

namespace nb = nanobind;

namespace effects {
namespace {

nb::list Names(std::initializer_list<const char *> names) {
  nb::list list;
  for (const char *name : names) list.append(name);
  return list;
}

// The names in the order of the numbers that they stand for.
nb::list NamesInOrder(std::initializer_list<std::pair<const char *, int64_t>> named) {
  nb::list list;
  for (const auto &[name, number] : named) {
    if (number != static_cast<int64_t>(nb::len(list))) nb::raise("the names of the wire are out of order at %s", name);
    list.append(name);
  }
  return list;
}

nb::dict Numbers(std::initializer_list<std::pair<const char *, int64_t>> named) {
  nb::dict numbers;
  for (const auto &[name, number] : named) numbers[name] = number;
  return numbers;
}

nb::dict Step(const TokenStep &step) {
  return Numbers({{"keeps_index", step.keeps_index},
                  {"phase", step.phase},
                  {"index", step.index},
                  {"num_shared", step.num_shared}});
}

// The place of a field of four bytes among others.
constexpr int64_t Word(size_t offset) { return static_cast<int64_t>(offset / sizeof(uint32_t)); }

#define EFFECTS_FIELD(name) fields[#name] = nb::make_tuple(offsetof(Fields, name), sizeof(Fields::name))

nb::dict Header() {
  using Fields = RecordHeader;
  nb::dict fields;
  EFFECTS_FIELD(size);
  EFFECTS_FIELD(kind);
  EFFECTS_FIELD(flags);
  EFFECTS_FIELD(site);
  EFFECTS_FIELD(token);
  EFFECTS_FIELD(device);
  EFFECTS_FIELD(reply);
  EFFECTS_FIELD(payload_size);
  EFFECTS_FIELD(time);
  return fields;
}

nb::dict Run() {
  using Fields = TextRun;
  nb::dict fields;
  EFFECTS_FIELD(site);
  EFFECTS_FIELD(end);
  EFFECTS_FIELD(epoch);
  EFFECTS_FIELD(count);
  return fields;
}

#undef EFFECTS_FIELD

} // namespace

nb::dict Wire() {
  constexpr auto number = [](auto one) { return static_cast<int64_t>(one); };
  constexpr auto behind_token = [](size_t offset) { return Word(kTokenSize + offset); };
  nb::dict wire;
  wire["token"] = NamesInOrder({{"stream", Word(offsetof(Token, stream))},
                                {"epoch", Word(offsetof(Token, epoch))},
                                {"phase", Word(offsetof(Token, phase))},
                                {"index", Word(offsetof(Token, index))}});
  wire["replica_token"] = NamesInOrder({{"stream", Word(offsetof(Token, stream))},
                                        {"epoch", Word(offsetof(Token, epoch))},
                                        {"phase", Word(offsetof(Token, phase))},
                                        {"index", Word(offsetof(Token, index))},
                                        {"group", behind_token(offsetof(ReplicaNumbers, group))},
                                        {"replica", behind_token(offsetof(ReplicaNumbers, replica))},
                                        {"num_shared", behind_token(offsetof(ReplicaNumbers, num_shared))},
                                        {"announces_skips", behind_token(offsetof(ReplicaNumbers, announces_skips))}});
  wire["count_step"] = Step(kCountStep);
  wire["enter_step"] = Step(kEnterStep);
  wire["leave_step"] = Step(kLeaveStep);
  wire["numbers"] = Numbers({{"interface", kInterface},
                             {"placed_thread", kPlacedThread},
                             {"domain_bits", kDomainBits},
                             {"plain_thread", kPlainThread},
                             {"all_devices", kAllDevices},
                             {"first_gpu", kFirstGpu},
                             {"header_size", sizeof(RecordHeader)},
                             {"devices_shift", kDevicesShift},
                             {"devices_mask", kDevicesMask},
                             {"call_shift", kCallShift}});
  wire["ahead"] = kAheadAttribute;
  wire["together"] = kTogetherAttribute;
  wire["fail_as_one"] = kFailAsOneAttribute;
  wire["header"] = Header();
  wire["text_run"] = Run();
  wire["kinds"] = Numbers({{"padding", number(Kind::kPadding)},
                           {"ordered", number(Kind::kOrdered)},
                           {"unordered", number(Kind::kUnordered)},
                           {"close", number(Kind::kClose)},
                           {"enter", number(Kind::kEnter)},
                           {"leave", number(Kind::kLeave)},
                           {"skip", number(Kind::kSkip)}});
  wire["flags"] = Numbers({{"large", kLarge},
                           {"replicated", kReplicated},
                           {"callback", kCallback},
                           {"may_diverge", kMayDiverge},
                           {"awaited", kAwaited}});
  wire["record_traits"] = Numbers({{"ordered", kRecordIsOrdered},
                                   {"closes", kRecordCloses},
                                   {"callback", kRecordIsCallback},
                                   {"enters", kRecordEnters},
                                   {"leaves", kRecordLeaves},
                                   {"may_diverge", kRecordMayDiverge},
                                   {"replicated", kRecordIsReplicated},
                                   {"has_shards", kRecordHasShards},
                                   {"counted", kRecordIsCounted}});
  wire["custom_call_traits"] = Numbers({{"has_token", kCustomCallHasToken},
                                        {"counts", kCustomCallCounts},
                                        {"ordered", kCustomCallIsOrdered},
                                        {"has_more", kCustomCallHasMore},
                                        {"starts", kCustomCallStarts},
                                        {"on_device", kCustomCallIsOnDevice}});
  wire["scalars"] = NamesInOrder({{"bool", number(Scalar::kBool)},
                                  {"int8", number(Scalar::kInt8)},
                                  {"int16", number(Scalar::kInt16)},
                                  {"int32", number(Scalar::kInt32)},
                                  {"int64", number(Scalar::kInt64)},
                                  {"uint8", number(Scalar::kUint8)},
                                  {"uint16", number(Scalar::kUint16)},
                                  {"uint32", number(Scalar::kUint32)},
                                  {"uint64", number(Scalar::kUint64)},
                                  {"float16", number(Scalar::kFloat16)},
                                  {"float32", number(Scalar::kFloat32)},
                                  {"float64", number(Scalar::kFloat64)},
                                  {"complex64", number(Scalar::kComplex64)},
                                  {"complex128", number(Scalar::kComplex128)},
                                  {"bfloat16", number(Scalar::kBfloat16)},
                                  {"byte", number(Scalar::kByte)},
                                  {"thread", number(Scalar::kThread)},
                                  {"device", number(Scalar::kDevice)},
                                  {"lane", number(Scalar::kLane)}});
  wire["targets"] = Names({kRecordTarget, kCallTarget, kCloseTarget, kGateTarget, kEnterTarget, kLeaveTarget,
                           kSkipTarget, kAfterTarget, kPlainTarget, kPlainCallTarget, kCustomCallTarget,
                           kCustomCallAttribute, kBeginTarget, kKeepTarget, kPostTarget, kTakeTarget});
  wire["program_traits"] = NamesInOrder({{"effects", kEffects},
                                         {"has_callbacks", kHasCallbacks},
                                         {"awaits_results", kAwaitsResults},
                                         {"has_custom_calls", kHasCustomCalls},
                                         {"domains_of_handlers", kDomainsOfHandlers},
                                         {"handlers", kHandlers}});
  wire["item_kinds"] = NamesInOrder({{"text", number(ItemKind::kText)},
                                     {"records", number(ItemKind::kRecords)},
                                     {"large", number(ItemKind::kLarge)}});
  wire["when_full"] = NamesInOrder({{"wait", number(WhenFull::kWait)}, {"drop", number(WhenFull::kDrop)}});
  wire["batch"] = Names(kBatchFields);
  wire["item"] = Names(kItemFields);
  wire["callback_record"] = Names(kCallbackRecordFields);
  wire["records_between"] = Names(kRecordsBetweenFields);
  return wire;
}

} // namespace effects
