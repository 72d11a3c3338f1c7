// The wire: what native code, compiled programs and Python must lay out in the same way. It is written down here and
// nowhere else: python/wire.cc hands it to Python, where effects/_model/wire.py gives it names.
#pragma once

#include <cstddef>
#include <cstdint>

namespace effects {

// Grows when a function of the native module takes or gives something else than before, or the wire has other names.
// effects/_model/native.py says which one Python expects.
inline constexpr int kInterface = 43;

// Tokens

// A token that counts. The same four numbers are the dependency inside the compiled program and the place of an effect
// in program order.
struct Token {
  uint32_t stream; // thread number << kDomainBits | order domain's number
  uint32_t epoch;  // number of the dispatch within the thread's stream
  uint32_t phase;  // grows when control enters or leaves a per-device region; odd inside of one
  uint32_t index;  // grows with every effect; in a per-device region from 0 on
};

inline constexpr uint32_t kDomainBits = 12;
// The number of what has no place in any domain.
inline constexpr uint32_t kNoDomain = 1;
inline constexpr uint32_t StreamOf(uint32_t thread, uint32_t domain) { return thread << kDomainBits | domain; }
inline uint32_t ThreadOf(const Token &token) { return token.stream >> kDomainBits; }
inline uint32_t DomainOf(const Token &token) { return token.stream & ((1u << kDomainBits) - 1); }

// Whether devices count for themselves here.
inline bool InRegion(const Token &token) { return (token.phase & 1) != 0; }

// In a region over some axes of its mesh, devices that differ along the others only are replicas of each other, which
// have one effect between them. There two more numbers follow those of the token.
struct ReplicaNumbers {
  uint32_t group;   // which group of replicas the device is in
  uint32_t replica; // which of them it is; replica 0 publishes on behalf of its group
};

// What a call makes of a token, number by number. Where the host does not write to the device's memory, the program
// does this itself, behind the call.
struct TokenStep {
  bool keeps_index;      // else it begins at 0
  uint32_t phase, index; // what is added to each
};
inline constexpr TokenStep Counts(uint32_t effects) { return {true, 0, effects}; } // so many effects
inline constexpr TokenStep kCountStep = Counts(1);
inline constexpr TokenStep kEnterStep{false, 1, 0}; // a device begins to count for itself
inline constexpr TokenStep kLeaveStep{true, 2, 0};  // and ends it: of the token around

// The plain stream: of programs that JAX dispatches, outside of `effects.jit`. Each of their effects is an epoch of it.
inline constexpr uint32_t kPlainThread = (1u << (32 - kDomainBits)) - 1;

// In place of a thread's number: the token lies on devices for program after program, and its epoch is the number of a
// cell that has both (see TokenCells).
inline constexpr uint32_t kPlacedThread = kPlainThread - 1;

// Records

enum class Kind : uint16_t {
  kPadding = 0,   // fills the ring up to its end; never leaves it
  kOrdered = 1,   // released in the order of its token
  kUnordered = 2, // released when it arrives
  // Markers: the payload holds one Token per domain, and `site` says how many devices publish theirs.
  kClose = 3, // the program has published all it will
  kEnter = 4, // a device begins to count for itself: the index is that of the next effect around the region
  kLeave = 5, // and ends it: the index after its last effect
  kSkip = 6,  // a device has no effects of its own from this index on, as many as `site` says
  // What the host does, for a tap alone (producer/publisher.h): a program is called and its call returns, it has
  // failed, a function of the user's begins and ends, a thread waits in a barrier, a device starts an asynchronous
  // operation and has what it came to, and a program is seen to have ended, or has never begun. The payload is text; of
  // a function, the number of the thread whose programs are those that it calls. The index of an operation's token is
  // its number.
  kDispatched = 16,
  kReturned = 17,
  kFailed = 18,
  kBegun = 19,
  kDone = 20,
  kBarrier = 21,
  kBarrierDone = 22,
  kOperation = 23,
  kOperationDone = 24,
  kEnded = 25,
};

inline bool IsMarker(Kind kind) { return kind >= Kind::kClose; }

enum Flag : uint16_t {
  kLarge = 1,      // the payload is a pointer to a block, owned by the record
  kReplicated = 2, // every device of the program publishes this same record
  kCallback = 4,   // replaying it runs a function of the user's
  kAwaited = 16,   // a device will wait for what comes of it: it is never dropped
  kMayDiverge = 8, // of kEnter: a device that waits for an answer may be what the other devices wait for
};

// Stands in place of a device in a record that all devices of a program publish, of which the host keeps one.
inline constexpr int32_t kAllDevices = -1;
// The number of a process's first GPU in records: those of CPUs are less.
inline constexpr int32_t kFirstGpu = 1 << 24;
// Which device it is of its platform, by the number that XLA gives handlers.
inline constexpr int32_t PlaceOf(int32_t device) { return device >= kFirstGpu ? device - kFirstGpu : device; }

// What a device publishes and the host replays begins with this. Plain bytes, no pointers, except for the payload of a
// large record, which travels beside the ring.
struct RecordHeader {
  uint32_t size; // bytes this record takes in the ring, a multiple of 8; first, so that padding fits in 8 bytes
  Kind kind;
  uint16_t flags;
  uint64_t site;
  Token token;
  int32_t device;
  uint32_t reply; // not 0: a device waits for the answer of this number; see Replies
  uint64_t payload_size;
  double time; // when it was published, in seconds since 1970; 0: nothing needed to know
};
static_assert(sizeof(RecordHeader) == 56 && sizeof(RecordHeader) % 8 == 0, "the payload is 8-byte aligned");

// Each operand of a payload begins at a multiple of 8.
inline constexpr size_t RoundUp8(size_t n) { return (n + 7) & ~size_t{7}; }

// The type of an operand's elements, where native code formats it.
enum class Scalar : uint8_t {
  kBool,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFloat32,
  kFloat64,
  kBfloat16,
  // What is no operand.
  kThread, // the number of the thread in a stream's number
  kDevice, // the place of a device, from its number
  kLane,   // the lane's number along one of the `vmap`s
};

inline constexpr size_t SizeOf(Scalar type) {
  switch (type) {
  case Scalar::kBool:
  case Scalar::kInt8:
  case Scalar::kUint8:
    return 1;
  case Scalar::kInt16:
  case Scalar::kUint16:
  case Scalar::kBfloat16:
    return 2;
  case Scalar::kInt32:
  case Scalar::kUint32:
  case Scalar::kFloat32:
  case Scalar::kThread:
  case Scalar::kDevice:
    return 4;
  case Scalar::kInt64:
  case Scalar::kUint64:
  case Scalar::kFloat64:
    return 8;
  case Scalar::kLane:
    break;
  }
  return 0;
}

// Calls of a compiled program

// The traits of a call that publishes a record, in one attribute, since a program has many calls. Above the devices is
// a number that keeps apart calls that are otherwise equal.
enum RecordTrait : int64_t {
  kRecordIsOrdered = 1,
  kRecordCloses = 2, // it is the last record of its program, which has no other tokens
  kRecordIsCallback = 4,
  kRecordEnters = 8,      // it is the first record of its region
  kRecordLeaves = 16,     // and the last
  kRecordMayDiverge = 32, // as the flag kMayDiverge
  kRecordIsReplicated = 64,
  kRecordHasShards = 128, // each device publishes its shards; with kRecordIsReplicated they make one record
  // Above the number of the call:
  kRecordHasMask = int64_t{1} << 61,   // the first operand says which lanes have the effect
  kRecordIsCounted = int64_t{1} << 62, // by the program: the call gives the token back as it came
};

// And the traits of a call of a handler of the user's.
enum CustomCallTrait : int64_t {
  kCustomCallHasToken = 1, // behind the operands
  kCustomCallCounts = 2,   // it is one of ours
  kCustomCallIsOrdered = 4,
  kCustomCallHasMore = 8, // there is something behind the results
};

// In both: how many devices come to the call, where that matters, and the number of the call.
inline constexpr int kDevicesShift = 8;
inline constexpr int64_t kDevicesMask = 0xFFFFFF;
inline constexpr int kCallShift = 32;
inline uint32_t DevicesOf(int64_t traits) { return static_cast<uint32_t>(traits >> kDevicesShift & kDevicesMask); }

// The names under which XLA knows the handlers.
inline constexpr char kRecordTarget[] = "effects_record";
inline constexpr char kCallTarget[] = "effects_call";
inline constexpr char kCloseTarget[] = "effects_close";
inline constexpr char kEnterTarget[] = "effects_enter";
inline constexpr char kLeaveTarget[] = "effects_leave";
inline constexpr char kSkipTarget[] = "effects_skip";
inline constexpr char kAfterTarget[] = "effects_after";
inline constexpr char kPlainTarget[] = "effects_plain";
inline constexpr char kPlainCallTarget[] = "effects_plain_call";
inline constexpr char kCustomCallTarget[] = "effects_custom_call";
inline constexpr char kBeginTarget[] = "effects_begin";
inline constexpr char kKeepTarget[] = "effects_keep";
inline constexpr char kPostTarget[] = "effects_post";
inline constexpr char kTakeTarget[] = "effects_take";

// The names of the attributes of their calls.
namespace attribute {
// Of a call that publishes a record.
inline constexpr char kSite[] = "site", kTraits[] = "traits", kDescription[] = "description";
// If the record is counted, and this is not 0: how many effects have come since the program has written the token that
// the call is given. So the program adds to a token once for all records that follow each other.
inline constexpr char kAhead[] = "ahead";
// If there are results, and several devices of a region come to the call: how many these are. They go on together
// (drain/replies.h). And if the region has collectives, 1.
inline constexpr char kTogether[] = "together", kFailAsOne[] = "fail_as_one";
// If the call publishes several records, which stand next to each other: how many operands are the first one's, and the
// attributes of the others under "0", "1" and so on.
inline constexpr char kOperands[] = "operands", kOthers[] = "others";
// Of the ends of programs and regions.
inline constexpr char kOrdered[] = "ordered", kDevices[] = "devices", kMayDiverge[] = "apart", kHasGroups[] = "parts",
                      kCounted[] = "counted", kCount[] = "count";
// Of asynchronous operations.
inline constexpr char kByLane[] = "by_lane", kOptional[] = "optional", kCall[] = "call", kTo[] = "to", kFrom[] = "from",
                      kSize[] = "size", kWhere[] = "where", kName[] = "name";
// Of custom calls: ours, whose name sorts behind all that users may choose, and what it has beside the site.
inline constexpr char kOurs[] = "~effects", kTarget[] = "target", kPlatform[] = "platform";
} // namespace attribute

// What a call of a program returns of its effects: the positions of Python's `ProgramTraits`.
enum ProgramTrait { kEffects, kHasCallbacks, kAwaitsResults, kHasCustomCalls, kDomainsOfHandlers, kHandlers };

// What the drain hands to Python

// The kinds of the items of a batch.
enum class ItemKind : int {
  kText,    // of consecutive records that go to one place
  kRecords, // consecutive records of one epoch, headers included
  kLarge,   // a large record by itself
};

// Consecutive records in a text: all of one site and one program.
struct TextRun {
  uint64_t site;
  uint64_t end; // of their text, counted in bytes from the item's beginning
  uint32_t epoch;
  uint32_t count;
};
static_assert(sizeof(TextRun) == 24);

// Settings

// What a producer does that finds its ring full.
enum class WhenFull : int { kWait = 0, kDrop = 1 };

} // namespace effects
