// The driver's functions for graphs: work that is put together, or captured from a stream, before it is launched.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "driver.h"

namespace simulated {
namespace {

struct Graph;

struct Node {
  const Graph *graph;
  NodeType type;
  Work work;
  std::vector<Node *> dependencies;
  std::unique_ptr<Graph> inside; // of a node that is a graph, or has one as its branch or body
  Condition *condition = nullptr;
  bool repeats = false;
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes; // each comes behind those that it depends on

  bool has(NodeType type) const {
    return std::any_of(nodes.begin(), nodes.end(), [&](const auto &node) {
      return node->type == type || (node->inside != nullptr && node->inside->has(type));
    });
  }

  Node &add(NodeType type, Work work, std::vector<Node *> dependencies) {
    nodes.push_back(std::make_unique<Node>(Node{this, type, std::move(work), std::move(dependencies), nullptr}));
    return *nodes.back();
  }
  std::vector<size_t> places(const std::vector<Node *> &of) const {
    std::vector<size_t> all;
    for (const Node *one : of)
      all.push_back(static_cast<size_t>(
          std::find_if(nodes.begin(), nodes.end(), [&](const auto &node) { return node.get() == one; }) -
          nodes.begin()));
    return all;
  }
};

std::unique_ptr<Graph> CopyOf(const Graph &graph) {
  auto copy = std::make_unique<Graph>();
  for (const auto &node : graph.nodes) {
    std::vector<Node *> dependencies;
    for (const size_t place : graph.places(node->dependencies)) dependencies.push_back(copy->nodes[place].get());
    Node &made = copy->add(node->type, node->work, std::move(dependencies));
    if (node->inside != nullptr) made.inside = CopyOf(*node->inside);
  }
  return copy;
}

bool BranchHasHostFunction(const Graph &graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto &node) {
    return (node->type == NodeType::kConditional && node->inside->has(NodeType::kHostFunction)) ||
           (node->inside != nullptr && BranchHasHostFunction(*node->inside));
  });
}

// Whether they differ in nothing but what their nodes do.
bool AreAlike(const Graph &one, const Graph &other) {
  return std::equal(one.nodes.begin(), one.nodes.end(), other.nodes.begin(), other.nodes.end(),
                    [&](const auto &a, const auto &b) {
                      return a->type == b->type && one.places(a->dependencies) == other.places(b->dependencies) &&
                             (a->inside == nullptr) == (b->inside == nullptr) &&
                             (a->inside == nullptr || AreAlike(*a->inside, *b->inside));
                    });
}

// A node of a graph that can be launched. What is inside of a node is laid out beside it, so that these nodes and
// others come in any order. Only a branch and the body of a loop have steps of their own.
struct Step {
  size_t work; // the place of what it does
  std::vector<size_t> dependencies;
  Condition *condition;
  bool repeats;
  std::vector<Step> inside;
};

struct Executable {
  std::vector<Step> steps;
  std::vector<Work> works;
  std::map<const Node *, size_t> places; // of their work
  std::vector<Condition *> conditions;
  Event *last = nullptr; // is recorded behind each launch

  void lay_out(const Graph &graph, const std::vector<size_t> &ahead, std::vector<Step> &into) {
    std::map<const Node *, size_t> steps_of;
    for (const auto &node : graph.nodes) {
      std::vector<size_t> dependencies = ahead;
      for (const Node *one : node->dependencies) dependencies.push_back(steps_of.at(one));
      const size_t first = into.size();
      if (node->type == NodeType::kGraph) lay_out(*node->inside, std::vector(dependencies), into);
      for (size_t i = first; i < into.size(); ++i) dependencies.push_back(i);
      steps_of[node.get()] = into.size();
      places[node.get()] = works.size();
      into.push_back({works.size(), std::move(dependencies), node->condition, node->repeats, {}});
      works.push_back(node->work);
      if (node->type == NodeType::kConditional) {
        conditions.push_back(node->condition);
        std::vector<Step> inside;
        lay_out(*node->inside, {}, inside);
        into.back().inside = std::move(inside);
      }
    }
  }

  bool update(const Node *node, Work work) {
    const auto it = places.find(node);
    if (it != places.end()) works[it->second] = std::move(work);
    return it != places.end();
  }
  // `by` is like `graph`.
  void update(const Graph &graph, const Graph &by) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      update(graph.nodes[i].get(), by.nodes[i]->work);
      if (graph.nodes[i]->inside != nullptr) update(*graph.nodes[i]->inside, *by.nodes[i]->inside);
    }
  }
};

thread_local std::minstd_rand random_number(std::random_device{}());

// In any order in which each step comes behind those that it depends on.
void Run(const std::vector<Step> &steps, const std::vector<Work> &works) {
  std::vector<size_t> missing, ready;
  std::vector<std::vector<size_t>> behind(steps.size());
  for (const Step &step : steps) {
    const size_t place = missing.size();
    for (const size_t one : step.dependencies) behind[one].push_back(place);
    missing.push_back(step.dependencies.size());
    if (missing.back() == 0) ready.push_back(place);
  }
  while (!ready.empty()) {
    std::swap(ready[random_number() % ready.size()], ready.back());
    const size_t place = ready.back();
    ready.pop_back();
    const Step &step = steps[place];
    if (works[step.work]) works[step.work]();
    for (bool again = step.condition != nullptr && step.condition->value != 0; again;) {
      Run(step.inside, works);
      again = step.repeats && step.condition->value != 0;
    }
    for (const size_t one : behind[place])
      if (--missing[one] == 0) ready.push_back(one);
  }
}

// Streams from which work is captured: the one with which it began, and those that have waited for its events.
struct Capture {
  Graph *graph;
  const Stream *first;
  std::thread::id thread;
  std::map<const Stream *, std::vector<Node *>> last; // what the next node of each stream depends on
  bool is_invalid = false, is_over = false;

  bool has_joined(const std::vector<Node *> &nodes) const {
    std::vector<Node *> open = last.at(first);
    std::set<Node *> found;
    while (!open.empty()) {
      Node *const node = open.back();
      open.pop_back();
      if (found.insert(node).second) open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
    }
    return std::all_of(nodes.begin(), nodes.end(), [&](Node *node) { return found.count(node) != 0; });
  }
};

auto &mutex = *new std::mutex; // guards all below
auto &captures = *new std::map<const Stream *, std::shared_ptr<Capture>>;
struct Recorded {
  std::shared_ptr<Capture> capture;
  std::vector<Node *> nodes;
};
auto &recorded = *new std::map<const Event *, Recorded>;

std::shared_ptr<Capture> CaptureOf(const Stream &stream) {
  const auto it = captures.find(&stream);
  return it == captures.end() ? nullptr : it->second;
}

template <typename Which>
Result Break(const Which &which) {
  std::lock_guard lock(mutex);
  Result result = kSuccess;
  for (const auto &[stream, capture] : captures)
    if (capture->thread == std::this_thread::get_id() || which(*stream)) {
      capture->is_invalid = true;
      result = kCaptureUnsupported;
    }
  return result;
}

} // namespace

Result BreakCapture() {
  return Break([](const Stream &) { return false; });
}
Result BreakCapture(const Stream &stream) {
  return Break([&](const Stream &captured) { return &captured == &stream; });
}
Result BreakCapture(const Context &context) {
  return Break([&](const Stream &captured) { return captured.device == context.device; });
}
Result BreakCapture(const Event *event) {
  {
    std::lock_guard lock(mutex);
    if (const auto it = recorded.find(event); it != recorded.end()) {
      it->second.capture->is_invalid = true;
      return kCapturedEvent;
    }
  }
  return BreakCapture();
}

Result Put(void *stream, NodeType type, Work work) {
  Stream &into = StreamOf(stream);
  {
    std::lock_guard lock(mutex);
    if (const auto capture = CaptureOf(into); capture != nullptr) {
      if (capture->is_invalid) return kCaptureInvalidated;
      std::vector<Node *> &last = capture->last[&into];
      last = {&capture->graph->add(type, std::move(work), last)};
      return kSuccess;
    }
  }
  into.put(std::move(work));
  return kSuccess;
}

std::optional<Result> RecordInCapture(const Event *event, void *stream) {
  const Stream &of = StreamOf(stream);
  std::lock_guard lock(mutex);
  recorded.erase(event);
  const auto capture = CaptureOf(of);
  if (capture == nullptr) return std::nullopt;
  if (capture->is_invalid) return kCaptureInvalidated;
  recorded[event] = {capture, capture->last[&of]};
  return kSuccess;
}

std::optional<Result> WaitInCapture(void *stream, const Event *event) {
  const Stream &of = StreamOf(stream);
  std::lock_guard lock(mutex);
  const auto capture = CaptureOf(of);
  const auto it = recorded.find(event);
  if (capture == nullptr && it == recorded.end()) return std::nullopt;
  if (capture != nullptr && (it == recorded.end() || it->second.capture != capture)) {
    capture->is_invalid = true;
    return it == recorded.end() ? kCaptureIsolation : kCaptureMerge;
  }
  const auto &[from, nodes] = it->second;
  if (from->is_over) return kCapturedEvent;
  if (from->is_invalid) return kCaptureInvalidated;
  captures[&of] = from;
  std::vector<Node *> &last = from->last[&of];
  last.insert(last.end(), nodes.begin(), nodes.end());
  return kSuccess;
}

} // namespace simulated

using namespace simulated;

namespace {

// The structures of the driver's that are used, as far as they are.
struct KernelParameters {
  Function *function;
  unsigned grid[3], block[3], shared;
  void **parameters;

  Work work() const {
    return KernelOf(function, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared, parameters);
  }
};
struct FillParameters {
  Address to;
  size_t pitch;
  unsigned value, bytes;
  size_t width, height;

  Work work() const {
    if (height != 1) Fail("A node of a graph fills memory in more than one dimension.");
    return bytes == 1   ? FillOf(to, static_cast<uint8_t>(value), width)
           : bytes == 2 ? FillOf(to, static_cast<uint16_t>(value), width)
                        : FillOf(to, value, width);
  }
};
struct Place {
  size_t x, y, z, level;
  int type;
  const void *host;
  Address device;
  void *rest[4];

  Address address() const { return (type == 1 ? AddressOf(host) : device) + x; }
};
struct CopyParameters {
  Place from, to;
  size_t width, height, depth;

  Work work() const {
    if (height != 1 || depth != 1) Fail("A node of a graph copies in more than one dimension.");
    return CopyOf(to.address(), from.address(), width);
  }
};
static_assert(sizeof(CopyParameters) == 200);
struct NodeParameters {
  int type, reserved[3];
  union {
    KernelParameters kernel;
    FillParameters fill;
    struct {
      int flags, reserved;
      Context *context;
      CopyParameters parameters;
    } copy;
    struct {
      Graph *graph;
      int ownership; // 0: a copy is added; 1: it belongs to the node from now on
    } graph;
    struct {
      Condition *condition;
      int type; // 0: a branch; 1: a loop
      unsigned count;
      Graph **inside; // is given
      Context *context;
    } conditional;
  };

  // Empty: such nodes are not here.
  std::optional<Work> work() const {
    switch (static_cast<NodeType>(type)) {
    case NodeType::kKernel:
      return kernel.work();
    case NodeType::kCopy:
      return copy.parameters.work();
    case NodeType::kFill:
      return fill.work();
    case NodeType::kEmpty:
      return Work();
    default:
      return std::nullopt;
    }
  }
};

Result Add(Node **made, Graph *graph, Node *const *dependencies, size_t count, NodeType type, Work work) {
  std::vector<Node *> all(dependencies, dependencies + count);
  if (std::any_of(all.begin(), all.end(), [&](const Node *one) { return one->graph != graph; })) return kInvalidValue;
  *made = &graph->add(type, std::move(work), std::move(all));
  return kSuccess;
}
Result AddGraph(Node **made, Graph *graph, Node *const *dependencies, size_t count, NodeType type,
                std::unique_ptr<Graph> inside) {
  const Result result = Add(made, graph, dependencies, count, type, nullptr);
  if (result == kSuccess) (*made)->inside = std::move(inside);
  return result;
}

Result Update(Executable *executable, const Node *node, NodeType type, Work work) {
  return node->type == type && executable->update(node, std::move(work)) ? kSuccess : kInvalidValue;
}
Result Update(Executable *executable, const Node *node, const Graph *by) {
  if (node->type != NodeType::kGraph || executable->places.count(node) == 0 || !AreAlike(*node->inside, *by))
    return kInvalidValue;
  executable->update(*node->inside, *by);
  return kSuccess;
}

Result Give(const std::vector<Node *> &nodes, Node **given, size_t *count) {
  if (given != nullptr) std::copy_n(nodes.begin(), std::min(*count, nodes.size()), given);
  *count = nodes.size();
  return kSuccess;
}

} // namespace

extern "C" {

// These are in driver.cc.
Result cuEventCreate(Event **event, unsigned flags);
Result cuEventRecord(Event *event, void *stream);
Result cuStreamWaitEvent(void *stream, Event *event, unsigned flags);

// For tests: how many graphs have been launched.
static std::atomic<uint64_t> launches = 0;
uint64_t simulated_graph_launches() { return launches; }

// Graphs and their nodes.
Result cuGraphCreate(Graph **graph, unsigned) {
  *graph = new Graph;
  return kSuccess;
}
Result cuGraphDestroy(Graph *graph) {
  delete graph;
  return kSuccess;
}
Result cuGraphAddEmptyNode(Node **made, Graph *graph, Node *const *dependencies, size_t count) {
  return Add(made, graph, dependencies, count, NodeType::kEmpty, nullptr);
}
Result cuGraphAddMemsetNode(Node **made, Graph *graph, Node *const *dependencies, size_t count,
                            const FillParameters *parameters, Context *) {
  return Add(made, graph, dependencies, count, NodeType::kFill, parameters->work());
}
Result cuGraphAddMemcpyNode(Node **made, Graph *graph, Node *const *dependencies, size_t count,
                            const CopyParameters *parameters, Context *) {
  return Add(made, graph, dependencies, count, NodeType::kCopy, parameters->work());
}
Result cuGraphAddChildGraphNode(Node **made, Graph *graph, Node *const *dependencies, size_t count,
                                const Graph *inside) {
  if (inside->has(NodeType::kConditional)) return kNotSupported;
  return AddGraph(made, graph, dependencies, count, NodeType::kGraph, CopyOf(*inside));
}
Result cuGraphAddNode_v2(Node **made, Graph *graph, Node *const *dependencies, const void *, size_t count,
                         NodeParameters *parameters) {
  const auto type = static_cast<NodeType>(parameters->type);
  if (type == NodeType::kGraph) {
    const auto &[inside, ownership] = parameters->graph;
    if (ownership == 0) return cuGraphAddChildGraphNode(made, graph, dependencies, count, inside);
    return AddGraph(made, graph, dependencies, count, type, std::unique_ptr<Graph>(inside));
  }
  if (type == NodeType::kConditional) {
    auto &given = parameters->conditional;
    if (given.type > 1 || given.count != 1) return kNotSupported;
    auto inside = std::make_unique<Graph>();
    given.inside = new Graph *(inside.get());
    const Result result = AddGraph(made, graph, dependencies, count, type, std::move(inside));
    if (result == kSuccess) (*made)->condition = given.condition, (*made)->repeats = given.type == 1;
    return result;
  }
  const auto work = parameters->work();
  return work ? Add(made, graph, dependencies, count, type, *work) : kNotSupported;
}
Result cuGraphConditionalHandleCreate(Condition **made, Graph *, Context *, unsigned value, unsigned flags) {
  *made = new Condition{value, flags == 1 ? std::optional(value) : std::nullopt}; // a launch may come to it yet
  return kSuccess;
}
Result cuGraphKernelNodeSetAttribute(Node *, int, const void *) { return kSuccess; } // its priority
Result cuGraphChildGraphNodeGetGraph(Node *node, Graph **inside) {
  *inside = node->inside.get();
  return node->inside == nullptr ? kInvalidValue : kSuccess;
}
Result cuGraphNodeGetType(Node *node, int *type) {
  *type = static_cast<int>(node->type);
  return kSuccess;
}
Result cuGraphGetNodes(Graph *graph, Node **given, size_t *count) {
  std::vector<Node *> all;
  for (const auto &node : graph->nodes) all.push_back(node.get());
  return Give(all, given, count);
}
Result cuGraphGetRootNodes(Graph *graph, Node **given, size_t *count) {
  std::vector<Node *> roots;
  for (const auto &node : graph->nodes)
    if (node->dependencies.empty()) roots.push_back(node.get());
  return Give(roots, given, count);
}

// Graphs that can be launched.
Result cuGraphInstantiateWithFlags(Executable **made, Graph *graph, unsigned long long) {
  CALLED_IN_CONTEXT("cuGraphInstantiate")
  if (BranchHasHostFunction(*graph)) return kNotSupported;
  auto executable = std::make_unique<Executable>();
  executable->lay_out(*graph, {}, executable->steps);
  cuEventCreate(&executable->last, 0);
  *made = executable.release();
  return kSuccess;
}
Result cuGraphExecDestroy(Executable *executable) {
  delete executable;
  return kSuccess;
}
Result cuGraphExecKernelNodeSetParams_v2(Executable *executable, Node *node, const KernelParameters *parameters) {
  return Update(executable, node, NodeType::kKernel, parameters->work());
}
Result cuGraphExecNodeSetParams(Executable *executable, Node *node, const NodeParameters *parameters) {
  const auto type = static_cast<NodeType>(parameters->type);
  if (type == NodeType::kGraph) return Update(executable, node, parameters->graph.graph);
  const auto work = parameters->work();
  return work ? Update(executable, node, type, *work) : kNotSupported;
}
Result cuGraphExecMemsetNodeSetParams(Executable *executable, Node *node, const FillParameters *parameters, Context *) {
  return Update(executable, node, NodeType::kFill, parameters->work());
}
Result cuGraphExecMemcpyNodeSetParams(Executable *executable, Node *node, const CopyParameters *parameters, Context *) {
  return Update(executable, node, NodeType::kCopy, parameters->work());
}
Result cuGraphExecChildGraphNodeSetParams(Executable *executable, Node *node, const Graph *by) {
  return Update(executable, node, by);
}
// A launch comes behind what is in the stream, and behind the last launch of the same graph. What becomes of the graph
// later does not change it. The driver captures launches too; here that fails.
Result cuGraphLaunch(Executable *executable, void *stream) {
  CALLED_IN_CONTEXT("cuGraphLaunch")
  OUTSIDE_CAPTURE(StreamOf(stream))
  cuStreamWaitEvent(stream, executable->last, 0);
  StreamOf(stream).put([steps = executable->steps, works = executable->works, conditions = executable->conditions] {
    for (Condition *condition : conditions) condition->value = condition->at_first.value_or(random_number() % 2);
    Run(steps, works);
  });
  cuEventRecord(executable->last, stream);
  ++launches;
  return kSuccess;
}

// Captures.
Result cuStreamIsCapturing(void *stream, int *status) {
  Called("cuStreamIsCapturing");
  const Stream &of = StreamOf(stream);
  std::lock_guard lock(mutex);
  const auto capture = CaptureOf(of);
  *status = capture == nullptr ? 0 : capture->is_invalid ? 2 : 1;
  return kSuccess;
}
Result cuStreamBeginCaptureToGraph(Stream *stream, Graph *graph, Node *const *dependencies, const void *, size_t count,
                                   int mode) {
  CALLED_IN_CONTEXT("cuStreamBeginCaptureToGraph")
  if (mode != 1) return kNotSupported; // in other modes calls of all threads break it, or those of none
  if (stream == nullptr) return kCaptureUnsupported;
  std::lock_guard lock(mutex);
  auto &capture = captures[stream];
  if (capture != nullptr) return kInvalidValue;
  capture = std::make_shared<Capture>(Capture{graph, stream, std::this_thread::get_id(), {}});
  capture->last[stream].assign(dependencies, dependencies + count);
  return kSuccess;
}
Result cuStreamEndCapture(Stream *stream, Graph **graph) {
  CALLED_IN_CONTEXT("cuStreamEndCapture")
  std::lock_guard lock(mutex);
  *graph = nullptr;
  const auto capture = CaptureOf(*stream);
  if (capture == nullptr) return kInvalidValue;
  if (capture->first != stream) return kCaptureUnmatched;
  if (capture->thread != std::this_thread::get_id()) return kCaptureWrongThread;
  capture->is_over = true;
  for (const auto &[captured, last] : capture->last) captures.erase(captured);
  if (capture->is_invalid) return kCaptureInvalidated;
  for (const auto &[captured, last] : capture->last)
    if (!capture->has_joined(last)) return kCaptureUnjoined;
  *graph = capture->graph;
  return kSuccess;
}

} // extern "C"
