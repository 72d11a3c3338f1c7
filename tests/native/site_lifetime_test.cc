// A site is forgotten when none of its records can come any more, and not before.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "world.h"

namespace effects::site_lifetime_test {
namespace {

using check::MakeToken;
using check::Random;
using std::chrono::milliseconds;

// A site is forgotten when its last holder has gone and every program dispatched by then has ended, not before, and
// whatever is dispatched later.
TEST(test_site_is_forgotten_when_its_programs_have_ended) {
  World world;
  for (int i = 0; i < 2; ++i) world.sites.retain(kSite, "text");
  world.drain.open(1, 0);
  world.drain.open(2, 0);
  world.drain.release_site(kSite);
  CHECK(world.step(milliseconds(1)).forgotten.empty());
  world.drain.release_site(kSite); // the last
  world.drain.open(3, 0);
  CHECK(world.step(milliseconds(1)).forgotten.empty());
  for (uint32_t thread : {2u, 1u}) {
    CHECK(world.sites.description(kSite) == "text");
    InThread([&] {
      PlayedProgram program(world.publisher, thread, 0);
      program.record(8);
      program.close();
    });
    Batch batch = world.play();
    for (; batch.finished.empty(); batch = world.play()) CHECK(batch.forgotten.empty());
    if (thread == 2) {
      CHECK(batch.forgotten.empty());
    } else {
      while (batch.forgotten.empty()) batch = world.play();     // what was in the run has been replayed
      CHECK((batch.forgotten == std::vector<uint64_t>{kSite})); // thread 3's program runs on
    }
  }
  CHECK(world.sites.description(kSite).empty());
  CHECK(world.step(milliseconds(1)).forgotten.empty());
}

// Nor is it forgotten while a plain record that was published by then has not left, or is being replayed.
TEST(test_site_is_forgotten_when_its_plain_records_have_left) {
  World world;
  world.sites.retain(kSite);
  world.drain.open(1, 0); // for which it waits
  InThread([&] { CHECK(world.plain(true, 8)); });
  world.drain.release_site(kSite);
  const Batch none = world.step(milliseconds(1));
  CHECK(none.items.empty() && none.forgotten.empty());
  InThread([&] { PlayedProgram(world.publisher, 1, 0).close(); });
  Batch batch = world.step();
  while (batch.items.empty()) {
    CHECK(batch.forgotten.empty());
    batch = world.step();
  }
  CHECK_SEEN(Items(batch), {"plain.0:0"});
  CHECK(batch.forgotten.empty());
  world.resume(batch);
  batch = world.step();
  CHECK((batch.forgotten == std::vector<uint64_t>{kSite}));
}

// While any stream is suspended, and with callbacks that have not run, no site is forgotten.
TEST(test_no_site_is_forgotten_while_a_stream_is_suspended) {
  World world;
  world.sites.retain(kSite);
  world.drain.release_site(kSite); // of which nothing can come
  world.drain.open(1, 0);
  InThread([&] { PlayedProgram(world.publisher, 1, 0).callback(); });
  const Batch run = world.step();
  CHECK_EQ(run.run, 1u);
  CHECK(run.forgotten.empty());
  CHECK(world.step(milliseconds(1)).forgotten.empty());
  world.resume(run);
  CHECK((world.step().forgotten == std::vector<uint64_t>{kSite}));
}

// A site whose last holder goes while the drain scans is not forgotten before the program that was dispatched
// meanwhile, of which the drain has not read yet.
TEST(test_site_outlives_a_program_dispatched_during_a_scan) {
  World world(WhenFull::kWait, size_t{1} << 20);
  const uint64_t sink = world.show_text(); // so that no run keeps the site
  world.sites.retain(kSite);
  world.drain.open(2, sink);
  Batch batch = DuringScan(
      world, [&] { PlayedProgram(world.publisher, 2, 0).unordered(8); },
      [&] { // fills the batch, so that this scan is its last
        PlayedProgram program(world.publisher, 2, 0);
        for (int i = 0; i < 6000; ++i) program.unordered(8);
        program.close();
      },
      [&] {
        world.drain.open(1, sink);
        world.drain.release_site(kSite);
      },
      [] {});
  CHECK_EQ(batch.run, Batch::kNoRun);
  CHECK(batch.forgotten.empty());
  InThread([&] {
    PlayedProgram program(world.publisher, 1, 0);
    program.record(8);
    program.close();
  });
  while (world.finished < 2) {
    CHECK(batch.forgotten.empty());
    batch = world.step();
  }
  CHECK((batch.forgotten == std::vector<uint64_t>{kSite}));
}

} // namespace
} // namespace effects::site_lifetime_test
