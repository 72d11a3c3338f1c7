// A stand-in for NVIDIA's driver, as a library with the driver's functions or linked into a program of tests. Its
// streams are threads that do what was put into them, later and in order. It sees what calls it, and complains of what
// the driver's documentation forbids, or what would go wrong on a device. It shows nothing about a device.
//
// Any thread may call everything here.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
// A stream, and the end of one: it does what is in it before.
void *StandIn_NewStream();
void StandIn_EndStream(void *stream);
// What is in the stream waits until it is let go.
void StandIn_Hold(void *stream);
void StandIn_LetGo(void *stream);
// Waits until the stream has done what is in it.
void StandIn_Synchronize(void *stream);
// What is in the stream is dropped, and so is what comes; whoever asks hears of this error.
void StandIn_FailStream(void *stream, int error);

// A device's memory, whose address means nothing to the host, and what lies there.
uint64_t StandIn_Allocate(size_t size);
void *StandIn_Memory(uint64_t address);

// The call number `skipped` from now on of this function fails with an error, and does nothing.
void StandIn_FailCall(const char *function, int skipped, int error);
void StandIn_SetVersion(int version);
// The address of one of the driver's functions here; null if it has none of this name.
void *StandIn_Find(const char *function);

// What was done that must not be, one a line; no text: nothing. The text is there until the next call.
const char *StandIn_Complaints();
// How often this function was called.
int StandIn_Calls(const char *function);
// The bytes of pinned memory that it has given.
size_t StandIn_Allocated();
// How many contexts the calling thread has.
int StandIn_Contexts();
}
