// The process's one publisher, drain and tables, and the XLA FFI handlers that feed them.
#pragma once

#include <cstdint>
#include <vector>

#include "drain.h"
#include "publisher.h"
#include "replies.h"
#include "sites.h"

namespace effects {

Publisher &publisher();
Drain &drain();
Sites &sites();
Replies &replies();

// Reads a token from a buffer, and writes one to a buffer of the same size.
Place LoadPlace(const void *data, size_t size);
void StorePlace(const Place &place, void *data);

// The place of the next effect; `has_spoken`: whether this device has published the one that is here.
void CountOn(Place &place, int32_t device, bool has_spoken);

// Publishes a record that belongs to no epoch.
void PublishPlain(uint64_t site, bool ordered, int32_t device, const Span *spans, size_t count, uint16_t flags = 0,
                  uint32_t reply = 0);

// When the process ends nobody answers any more: says so to who waits under this number.
bool FailIfStopped(uint32_t reply);

// The type of what a loaded program keeps of each of its sites; XLA wants to know it before the handlers.
void *LoadedSiteTypeId();
void *LoadedSiteTypeInfo();

struct Handler {
  const char *target;
  const char *stage;
  void *function;
};
const std::vector<Handler> &handlers();

} // namespace effects
