#include "wire.h"

#include <initializer_list>
#include <type_traits>
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

// The names, in the order of their numbers.
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

nb::tuple Step(const TokenStep &step) {
  return nb::make_tuple(step.keeps_index, step.phase, step.index);
}

// The index of a four-byte field.
constexpr int64_t Word(size_t offset) { return static_cast<int64_t>(offset / sizeof(uint32_t)); }

// The name of a field's type in NumPy and `struct`.
template <typename T>
nb::tuple Named(const char *name) {
  if constexpr (std::is_enum_v<T>) return Named<std::underlying_type_t<T>>(name);
  if constexpr (std::is_same_v<T, Token>) return nb::make_tuple(name, "4u4", "4I");
  if constexpr (std::is_same_v<T, double>) return nb::make_tuple(name, "f8", "d");
  if constexpr (std::is_same_v<T, int32_t>) return nb::make_tuple(name, "i4", "i");
  if constexpr (std::is_same_v<T, uint16_t>) return nb::make_tuple(name, "u2", "H");
  if constexpr (std::is_same_v<T, uint32_t>) return nb::make_tuple(name, "u4", "I");
  if constexpr (std::is_same_v<T, uint64_t>) return nb::make_tuple(name, "u8", "Q");
}

#define EFFECTS_FIELD(name) Named<decltype(Of::name)>(#name)

// Fields are consecutive, without padding.
nb::list Header() {
  using Of = RecordHeader;
  nb::list fields;
  for (const nb::tuple &field :
       {EFFECTS_FIELD(size), EFFECTS_FIELD(kind), EFFECTS_FIELD(flags), EFFECTS_FIELD(site), EFFECTS_FIELD(token),
        EFFECTS_FIELD(device), EFFECTS_FIELD(reply), EFFECTS_FIELD(payload_size), EFFECTS_FIELD(time)})
    fields.append(field);
  return fields;
}

nb::list Run() {
  using Of = TextRun;
  nb::list fields;
  for (const nb::tuple &field : {EFFECTS_FIELD(site), EFFECTS_FIELD(end), EFFECTS_FIELD(epoch), EFFECTS_FIELD(count)})
    fields.append(field);
  return fields;
}

#undef EFFECTS_FIELD

} // namespace

nb::dict Wire() {
  constexpr auto number = [](auto one) { return static_cast<int64_t>(one); };
  constexpr auto behind_token = [](size_t offset) { return Word(kTokenSize + offset); };
  nb::dict wire;
  wire["replica_token"] = NamesInOrder({{"stream", Word(offsetof(Token, stream))},
                                        {"epoch", Word(offsetof(Token, epoch))},
                                        {"phase", Word(offsetof(Token, phase))},
                                        {"index", Word(offsetof(Token, index))},
                                        {"group", behind_token(offsetof(ReplicaNumbers, group))},
                                        {"replica", behind_token(offsetof(ReplicaNumbers, replica))}});
  wire["count_step"] = Step(kCountStep);
  wire["enter_step"] = Step(kEnterStep);
  wire["leave_step"] = Step(kLeaveStep);
  wire["numbers"] = Numbers({{"interface", kInterface},
                             {"placed_thread", kPlacedThread},
                             {"domain_bits", kDomainBits},
                             {"no_domain", kNoDomain},
                             {"plain_thread", kPlainThread},
                             {"all_devices", kAllDevices},
                             {"first_gpu", kFirstGpu},
                             {"token_length", Word(kTokenSize)},
                             {"header_size", sizeof(RecordHeader)},
                             {"text_run_size", sizeof(TextRun)},
                             {"devices_shift", kDevicesShift},
                             {"call_shift", kCallShift}});
  wire["kinds"] = Numbers({{"ordered", number(Kind::kOrdered)},
                           {"unordered", number(Kind::kUnordered)},
                           {"close", number(Kind::kClose)},
                           {"dispatched", number(Kind::kDispatched)},
                           {"returned", number(Kind::kReturned)},
                           {"failed", number(Kind::kFailed)},
                           {"begun", number(Kind::kBegun)},
                           {"done", number(Kind::kDone)},
                           {"barrier", number(Kind::kBarrier)},
                           {"barrier_done", number(Kind::kBarrierDone)},
                           {"operation", number(Kind::kOperation)},
                           {"operation_done", number(Kind::kOperationDone)},
                           {"ended", number(Kind::kEnded)}});
  wire["header"] = Header();
  wire["text_run"] = Run();
  wire["record_traits"] = Numbers({{"ordered", kRecordIsOrdered},
                                   {"closes", kRecordCloses},
                                   {"callback", kRecordIsCallback},
                                   {"enters", kRecordEnters},
                                   {"leaves", kRecordLeaves},
                                   {"may_diverge", kRecordMayDiverge},
                                   {"replicated", kRecordIsReplicated},
                                   {"has_shards", kRecordHasShards},
                                   {"has_mask", kRecordHasMask},
                                   {"counted", kRecordIsCounted}});
  wire["custom_call_traits"] = Numbers({{"has_token", kCustomCallHasToken},
                                        {"counts", kCustomCallCounts},
                                        {"ordered", kCustomCallIsOrdered},
                                        {"has_more", kCustomCallHasMore}});
  // In the order of `Scalar`.
  wire["scalars"] = Names({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32",
                           "float64", "bfloat16", "thread", "device", "lane"});
  static_assert(number(Scalar::kBool) == 0 && number(Scalar::kLane) == 14);
  wire["record_targets"] = Names({kRecordTarget, kCallTarget, kPlainTarget, kPlainCallTarget});
  wire["region_targets"] = Names({kCloseTarget, kEnterTarget, kLeaveTarget, kSkipTarget, kAfterTarget});
  wire["operation_targets"] = Names({kBeginTarget, kKeepTarget, kPostTarget, kTakeTarget});
  wire["custom_call_targets"] = Names({kCustomCallTarget});
  namespace name = attribute;
  wire["record_attributes"] = Names({name::kSite, name::kTraits, name::kDescription, name::kAhead, name::kTogether,
                                     name::kFailAsOne, name::kOperands, name::kOthers});
  wire["region_attributes"] =
      Names({name::kOrdered, name::kDevices, name::kMayDiverge, name::kHasGroups, name::kCounted, name::kCount});
  wire["operation_attributes"] = Names(
      {name::kByLane, name::kOptional, name::kCall, name::kTo, name::kFrom, name::kSize, name::kWhere, name::kName});
  wire["custom_call_attributes"] = Names({name::kOurs, name::kTarget, name::kPlatform});
  wire["program_traits"] = NamesInOrder({{"effects", kEffects},
                                         {"has_callbacks", kHasCallbacks},
                                         {"awaits_results", kAwaitsResults},
                                         {"has_custom_calls", kHasCustomCalls},
                                         {"domains_of_handlers", kDomainsOfHandlers},
                                         {"handlers", kHandlers}});
  wire["item_kinds"] = Numbers({{"text", number(ItemKind::kText)},
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
