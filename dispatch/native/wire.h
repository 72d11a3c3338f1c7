// The wire: the layout that native code, compiled programs and Python share. This file is its only definition:
// python/wire.cc exports it to Python, where effects/_model/wire.py names it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace effects {

// Increased when the signature of a function of the native module changes, or a name of the wire. Python expects the
// number in effects/_model/native.py.
inline constexpr int kInterface = 45;

// Tokens

// A token that counts. Its four numbers are both the dependency inside the compiled program and the effect's place in
// program order.
struct Token {
  uint32_t stream; // thread number << kDomainBits | order domain's number
  uint32_t epoch;  // number of the dispatch within the thread's stream
  uint32_t phase;  // grows when control enters or leaves a per-device region; odd inside
  uint32_t index;  // grows with every effect; starts at 0 in a per-device region
};

inline constexpr uint32_t kDomainBits = 12;
// The number for unordered effects.
inline constexpr uint32_t kNoDomain = 1;
inline constexpr uint32_t StreamOf(uint32_t thread, uint32_t domain) { return thread << kDomainBits | domain; }
inline uint32_t ThreadOf(const Token &token) { return token.stream >> kDomainBits; }
inline uint32_t DomainOf(const Token &token) { return token.stream & ((1u << kDomainBits) - 1); }

// True in a per-device region.
inline bool InRegion(const Token &token) { return (token.phase & 1) != 0; }

// In a region over some axes of its mesh, devices that differ along the other axes only are replicas of each other, and
// have one effect between them. There a token has two more numbers.
struct ReplicaNumbers {
  uint32_t group;   // the device's group of replicas
  uint32_t replica; // its number in the group; replica 0 publishes on behalf of the group
};

// The change of a token by a call. If the host does not write to the device's memory, the program does it after the
// call.
struct TokenStep {
  bool keeps_index;      // else the index restarts at 0
  uint32_t phase, index; // added to each
};
inline constexpr TokenStep Counts(uint32_t effects) { return {true, 0, effects}; } // `effects` effects
inline constexpr TokenStep kCountStep = Counts(1);
inline constexpr TokenStep kEnterStep{false, 1, 0}; // a device begins to count for itself
inline constexpr TokenStep kLeaveStep{true, 2, 0};  // a device leaves it; applied to the outer token

// The plain stream, of programs that JAX dispatches outside of `effects.jit`. Each of their effects is an epoch.
inline constexpr uint32_t kPlainThread = (1u << (32 - kDomainBits)) - 1;

// In place of a thread's number: a placed token, whose epoch is the number of a cell with both numbers (see
// TokenCells).
inline constexpr uint32_t kPlacedThread = kPlainThread - 1;

// Records

enum class Kind : uint16_t {
  kPadding = 0,   // fills the ring up to its end; never released
  kOrdered = 1,   // released in the order of its token
  kUnordered = 2, // released when it arrives
  // Markers: the payload holds one Token per domain; `site` is the number of devices that publish one.
  kClose = 3, // the program will publish no more
  kEnter = 4, // a device enters a region; the index is the next effect's around the region
  kLeave = 5, // a device leaves; the index is the one after its last effect
  kSkip = 6,  // a device has no effects at `site` indices from this one on
  // Notes of the host, only for a tap (producer/publisher.h): a program is called, its call returns, it has failed; a
  // user function begins and ends; a thread waits in a barrier; a device starts an asynchronous operation and has its
  // result; a program has been seen to end, or has never begun. The payload is text; for a function, the number of the
  // thread of the programs that it calls. The index of an operation's token is the operation's number.
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
  kAwaited = 16,   // a device awaits its answer: it is never dropped
  kMayDiverge = 8, // of kEnter: other devices may wait for a device that awaits an answer
};

// In place of a device: the record is published by all devices of a program, and the host keeps one copy.
inline constexpr int32_t kAllDevices = -1;
// The number of a process's first GPU in records; CPUs have smaller numbers.
inline constexpr int32_t kFirstGpu = 1 << 24;
// The device's number in its platform, as XLA passes it to handlers.
inline constexpr int32_t PlaceOf(int32_t device) { return device >= kFirstGpu ? device - kFirstGpu : device; }

// The header of each record. Plain bytes without pointers, except for the payload of a large record, which travels
// beside the ring.
struct RecordHeader {
  uint32_t size; // of the record in the ring, a multiple of 8; the first field, so that padding fits in 8 bytes
  Kind kind;
  uint16_t flags;
  uint64_t site;
  Token token;
  int32_t device;
  uint32_t reply; // not 0: a device waits for the answer of this number; see Replies
  uint64_t payload_size;
  double time; // of publishing, in seconds since 1970; 0: not recorded
};
static_assert(sizeof(RecordHeader) == 56 && sizeof(RecordHeader) % 8 == 0, "the payload is 8-byte aligned");

// Each operand of a payload begins at a multiple of 8.
inline constexpr size_t RoundUp8(size_t n) { return (n + 7) & ~size_t{7}; }

// The element type of an operand that native code formats.
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
  // Fields that are no operands.
  kThread, // the thread's number in a stream number
  kDevice, // the place of the device, from its number
  kLane,   // the lane's number along one `vmap` axis
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

// The traits of a call that publishes a record, in one attribute, since a program has many calls. The bits above the
// number of devices keep apart calls that are otherwise equal.
enum RecordTrait : int64_t {
  kRecordIsOrdered = 1,
  kRecordCloses = 2, // it is the last record of its program, which has no other tokens
  kRecordIsCallback = 4,
  kRecordEnters = 8,      // it is the first record of its region
  kRecordLeaves = 16,     // and the last
  kRecordMayDiverge = 32, // as the flag kMayDiverge
  kRecordIsReplicated = 64,
  kRecordHasShards = 128, // each device publishes its shards; with kRecordIsReplicated, as one record
  // Above the number of the call:
  kRecordHasMask = int64_t{1} << 61,   // the first operand is the mask of lanes
  kRecordIsCounted = int64_t{1} << 62, // by the program: the call returns the token unchanged
};

// The traits of a call of a user handler.
enum CustomCallTrait : int64_t {
  kCustomCallHasToken = 1, // after the operands
  kCustomCallCounts = 2,   // it is an effect of ours
  kCustomCallIsOrdered = 4,
  kCustomCallHasMore = 8, // more than results is returned
};

// In both: the number of devices that reach the call, if that matters, and the number of the call.
inline constexpr int kDevicesShift = 8;
inline constexpr int64_t kDevicesMask = 0xFFFFFF;
inline constexpr int kCallShift = 32;
inline uint32_t DevicesOf(int64_t traits) { return static_cast<uint32_t>(traits >> kDevicesShift & kDevicesMask); }

// The names of the handlers in XLA.
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
// If the record is counted: the number of effects since the program last wrote the token. So the program adds to a
// token once for all consecutive records.
inline constexpr char kAhead[] = "ahead";
// If there are results and several devices of a region reach the call: their number; they continue together
// (drain/replies.h). And 1 if the region has collectives.
inline constexpr char kTogether[] = "together", kFailAsOne[] = "fail_as_one";
// If the call publishes several consecutive records: the number of the first record's operands, and the attributes of
// the others under "0", "1" and so on.
inline constexpr char kOperands[] = "operands", kOthers[] = "others";
// Of the ends of programs and regions.
inline constexpr char kOrdered[] = "ordered", kDevices[] = "devices", kMayDiverge[] = "apart", kHasGroups[] = "parts",
                      kCounted[] = "counted", kCount[] = "count";
// Of asynchronous operations.
inline constexpr char kByLane[] = "by_lane", kOptional[] = "optional", kCall[] = "call", kTo[] = "to", kFrom[] = "from",
                      kSize[] = "size", kWhere[] = "where", kName[] = "name";
// Of custom calls: our attribute, whose name sorts after all names that users may choose, and its parts beside the
// site.
inline constexpr char kOurs[] = "~effects", kTarget[] = "target", kPlatform[] = "platform";
} // namespace attribute

// The positions in Python's `ProgramTraits`.
enum ProgramTrait { kEffects, kHasCallbacks, kAwaitsResults, kHasCustomCalls, kDomainsOfHandlers, kHandlers };

// Batches of the drain

// The kinds of items in a batch.
enum class ItemKind : int {
  kText,    // of consecutive records for one output
  kRecords, // consecutive records of one epoch, headers included
  kLarge,   // a large record by itself
};

// Consecutive records in a text, of one site and one program.
struct TextRun {
  uint64_t site;
  uint64_t end; // of their text, in bytes from the item's beginning
  uint32_t epoch;
  uint32_t count;
};
static_assert(sizeof(TextRun) == 24);

// Settings

// A producer's action at a full ring.
enum class WhenFull : int { kWait = 0, kDrop = 1 };

} // namespace effects
