// The driver's functions for memory and copies.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "driver.h"

namespace simulated {

Work CopyOf(Address to, Address from, size_t size) {
  return [=] { std::memmove(memory().real(to, size, true), memory().real(from, size, true), size); };
}
template <typename Value>
Work FillOf(Address to, Value value, size_t count) {
  return [=] { std::fill_n(static_cast<Value *>(memory().real(to, count * sizeof value)), count, value); };
}
template Work FillOf(Address, uint8_t, size_t);
template Work FillOf(Address, uint16_t, size_t);
template Work FillOf(Address, uint32_t, size_t);

} // namespace simulated

using namespace simulated;

namespace {

Result Copy(Address to, Address from, size_t size, void *stream) {
  return Put(stream, NodeType::kCopy, CopyOf(to, from, size));
}
Result CopyNow(Address to, Address from, size_t size) {
  Synchronize(device());
  std::memmove(memory().real(to, size, true), memory().real(from, size, true), size);
  return kSuccess;
}
bool is_pinned(const void *data) { return memory().find(AddressOf(data)).size != 0; }

template <typename Value>
Result Fill(Address to, Value value, size_t count, void *stream) {
  return Put(stream, NodeType::kFill, FillOf(to, value, count));
}

// The structures of the driver's that are used, as far as they are.
struct AllocationProperties {
  int type, handle_types;
  struct {
    int type, id;
  } location;
};
struct Allocation {
  size_t size;
  int device;
};
} // namespace

extern "C" {

// Memory of devices.
Result cuMemGetInfo_v2(size_t *free, size_t *all) {
  CALLED_IN_CONTEXT("cuMemGetInfo")
  *all = Memory::kOfDevice;
  *free = *all - memory().used(device());
  return kSuccess;
}
Result cuMemAlloc_v2(Address *address, size_t size) {
  CALLED_IN_CONTEXT("cuMemAlloc")
  OUTSIDE_CAPTURE()
  *address = memory().reserve(size);
  return *address != 0 && memory().map(*address, size, device()) ? kSuccess : kOutOfMemory;
}
Result cuMemFree_v2(Address address) {
  CALLED_IN_CONTEXT("cuMemFree")
  OUTSIDE_CAPTURE()
  Synchronize(device());
  const size_t size = memory().find(address).size;
  memory().unmap(address);
  memory().give_back(address, size);
  return kSuccess;
}
Result cuMemGetAllocationGranularity(size_t *size, const AllocationProperties *, int) {
  *size = size_t{1} << 21;
  return kSuccess;
}
Result cuMemAddressReserve(Address *address, size_t size, size_t, Address, unsigned long long) {
  *address = memory().reserve(size);
  return *address == 0 ? kOutOfMemory : kSuccess;
}
Result cuMemAddressFree(Address address, size_t size) {
  memory().give_back(address, size);
  return kSuccess;
}
Result cuMemCreate(Allocation **made, size_t size, const AllocationProperties *properties, unsigned long long) {
  *made = new Allocation{size, properties->location.id};
  return kSuccess;
}
Result cuMemRelease(Allocation *) { return kSuccess; }
Result cuMemMap(Address address, size_t size, size_t, const Allocation *allocation, unsigned long long) {
  return memory().map(address, size, allocation->device) ? kSuccess : kOutOfMemory;
}
Result cuMemUnmap(Address address, size_t) {
  memory().unmap(address);
  return kSuccess;
}
Result cuMemSetAccess(Address, size_t, const void *, size_t) { return kSuccess; }
Result cuMemGetAddressRange_v2(Address *first, size_t *size, Address address) {
  const auto range = memory().find(address);
  if (range.size == 0 || range.device < 0) return kNotFound;
  if (first != nullptr) *first = range.first;
  if (size != nullptr) *size = range.size;
  return kSuccess;
}

// Memory of the host's.
Result cuMemHostAlloc(void **data, size_t size, unsigned) {
  CALLED_IN_CONTEXT("cuMemHostAlloc")
  OUTSIDE_CAPTURE()
  *data = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  memory().pin(*data, size);
  return kSuccess;
}
Result cuMemFreeHost(void *data) {
  CALLED_IN_CONTEXT("cuMemFreeHost")
  OUTSIDE_CAPTURE()
  Synchronize(-1);
  memory().unpin(data);
  std::free(data);
  return kSuccess;
}
Result cuMemHostRegister_v2(void *data, size_t size, unsigned) {
  CALLED_IN_CONTEXT("cuMemHostRegister")
  OUTSIDE_CAPTURE()
  memory().pin(data, size);
  return kSuccess;
}
Result cuMemHostUnregister(void *data) {
  CALLED_IN_CONTEXT("cuMemHostUnregister")
  OUTSIDE_CAPTURE()
  memory().unpin(data);
  return kSuccess;
}
Result cuMemHostGetDevicePointer_v2(Address *address, void *data, unsigned) {
  *address = AddressOf(data);
  return kSuccess;
}
Result cuPointerGetAttribute(void *value, int attribute, Address address) {
  const auto range = memory().find(address);
  if (range.size == 0) return kInvalidValue;
  const int device = std::max(range.device, 0);
  switch (attribute) {
  case 1: // the context
    *static_cast<Context **>(value) = &ContextOf(device);
    return kSuccess;
  case 2: // the kind of memory
    *static_cast<unsigned *>(value) = range.device < 0 ? 1 : 2;
    return kSuccess;
  case 3: // the address on the device
    *static_cast<Address *>(value) = address;
    return kSuccess;
  case 8: // whether it is managed
    *static_cast<unsigned *>(value) = 0;
    return kSuccess;
  case 9: // the device
    *static_cast<int *>(value) = device;
    return kSuccess;
  default:
    return kInvalidValue;
  }
}

// Copies. Those from and to memory that is not pinned are over, or have taken what they copy, when they return.
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t size, void *stream) {
  CALLED_IN_CONTEXT("cuMemcpyDtoHAsync")
  if (is_pinned(to)) return Copy(AddressOf(to), from, size, stream);
  OUTSIDE_CAPTURE(StreamOf(stream))
  Copy(AddressOf(to), from, size, stream);
  StreamOf(stream).synchronize();
  return kSuccess;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t size, void *stream) {
  CALLED_IN_CONTEXT("cuMemcpyHtoDAsync")
  if (is_pinned(from)) return Copy(to, AddressOf(from), size, stream);
  OUTSIDE_CAPTURE(StreamOf(stream))
  const auto *const bytes = static_cast<const std::byte *>(from);
  const auto taken = std::make_shared<std::vector<std::byte>>(bytes, bytes + size);
  StreamOf(stream).put([=] { std::memcpy(memory().real(to, size), taken->data(), size); });
  return kSuccess;
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t size, void *stream) {
  CALLED_IN_CONTEXT("cuMemcpyDtoDAsync")
  return Copy(to, from, size, stream);
}
Result cuMemcpyAsync(Address to, Address from, size_t size, void *stream) {
  CALLED_IN_CONTEXT("cuMemcpyAsync")
  return Copy(to, from, size, stream);
}
Result cuMemcpyPeerAsync(Address to, Context *, Address from, Context *, size_t size, void *stream) {
  CALLED_IN_CONTEXT("cuMemcpyPeerAsync")
  return Copy(to, from, size, stream);
}
Result cuMemcpyDtoH_v2(void *to, Address from, size_t size) {
  CALLED_IN_CONTEXT("cuMemcpyDtoH")
  OUTSIDE_CAPTURE()
  return CopyNow(AddressOf(to), from, size);
}
Result cuMemcpyHtoD_v2(Address to, const void *from, size_t size) {
  CALLED_IN_CONTEXT("cuMemcpyHtoD")
  OUTSIDE_CAPTURE()
  return CopyNow(to, AddressOf(from), size);
}
Result cuMemcpyDtoD_v2(Address to, Address from, size_t size) {
  CALLED_IN_CONTEXT("cuMemcpyDtoD")
  OUTSIDE_CAPTURE()
  return CopyNow(to, from, size);
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t count, void *stream) {
  CALLED_IN_CONTEXT("cuMemsetD8Async")
  return Fill(to, value, count, stream);
}
Result cuMemsetD32Async(Address to, unsigned value, size_t count, void *stream) {
  CALLED_IN_CONTEXT("cuMemsetD32Async")
  return Fill(to, value, count, stream);
}
Result cuMemsetD8_v2(Address to, unsigned char value, size_t count) {
  CALLED_IN_CONTEXT("cuMemsetD8")
  OUTSIDE_CAPTURE()
  Fill(to, value, count, nullptr);
  Synchronize(device());
  return kSuccess;
}
Result cuMemsetD32_v2(Address to, unsigned value, size_t count) {
  CALLED_IN_CONTEXT("cuMemsetD32")
  OUTSIDE_CAPTURE()
  Fill(to, value, count, nullptr);
  Synchronize(device());
  return kSuccess;
}

} // extern "C"
