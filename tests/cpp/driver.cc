/* Calls what the tests of the C++ headers ask for, and prints what came of it.
 *
 *   package FOLDERS KERNEL FACTORY ARG...     FOLDERS with ':' between; FACTORY "causal=true,n=3,mode='a'" or "-"
 *   function PATH ARG...
 *   threads FOLDER KERNEL THREADS CALLS ARG...  all threads begin with the first call at once
 *   stream                                    what StreamScope leaves and restores
 *   names FOLDER                              of its kernels
 *   targets TARGETS CAPABILITIES              with ',' between: for each pair whether it runs, and the preference
 *
 * An ARG is a number ("3", "2.5", "true") or a tensor "float32:4,8", with strides "float32:4,8:1,4", in memory behind a pointer to
 * const with "const:" before it, misaligned by a byte with "odd:", on another device with "cuda:". Tensors of float32 are filled with
 * ones, others with zeros. Prints each tensor's elements' sum (of bytes where it is not float32), or the error's kind and text. */
#include <tlaot/tlaot.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <sstream>
#include <thread>

namespace {

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> out;
  std::stringstream stream(text);
  for (std::string one; std::getline(stream, one, by);) out.push_back(one);
  return out;
}

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> out;
  for (const auto& one : split(text, ',')) out.push_back(std::stoll(one));
  return out;
}

struct Arg {
  std::vector<unsigned char> memory;
  std::unique_ptr<tlaot::Tensor> tensor;
  DLTensor described;
  size_t bytes = 0, skip = 0;
  bool is_float = false;
  TVMFFIAny any{};

  double sum() const {
    double total = 0;
    for (size_t i = 0; i < bytes; i += is_float ? 4 : 1) {
      float value = memory[skip + i];
      if (is_float) std::memcpy(&value, &memory[skip + i], 4);
      total += value;
    }
    return total;
  }
};

void parse(const std::string& text, Arg* out) {
  auto parts = split(text, ':');
  if (parts.size() == 1) {
    tlaot::detail::Slot slot;
    if (text == "true" || text == "false") out->any = tlaot::detail::pack(text == "true", &slot);
    else if (text.find('.') != std::string::npos) out->any = tlaot::detail::pack(std::stod(text), &slot);
    else out->any = tlaot::detail::pack(static_cast<int64_t>(std::stoll(text)), &slot);
    return;
  }
  bool constant = false;
  DLDevice device = tlaot::cpu();
  for (; parts[0] == "const" || parts[0] == "odd" || parts[0] == "cuda"; parts.erase(parts.begin())) {
    if (parts[0] == "const") constant = true;
    if (parts[0] == "odd") out->skip = 1;
    if (parts[0] == "cuda") device = tlaot::cuda(0);
  }
  const DLDataType type = tlaot::dtype(parts[0]);
  const auto shape = parts.size() > 1 ? numbers(parts[1]) : std::vector<int64_t>();
  const auto strides = parts.size() > 2 ? numbers(parts[2]) : std::vector<int64_t>();
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  out->is_float = parts[0] == "float32";
  out->bytes = static_cast<size_t>(count) * ((type.bits + 7) / 8);
  out->memory.resize(out->bytes + 64);
  const float one = 1;
  for (int64_t i = 0; out->is_float && i < count; i++) std::memcpy(&out->memory[out->skip + 4 * i], &one, 4);
  void* data = out->memory.data() + out->skip;
  out->tensor = constant ? std::make_unique<tlaot::Tensor>(static_cast<const void*>(data), type, shape, device, strides)
                         : std::make_unique<tlaot::Tensor>(data, type, shape, device, strides);
}

/* Both take 1 to 4 arguments, tensors or any. */
template <class Callable, class... Done>
void call(const Callable& callable, std::vector<Arg>& args, size_t next, const Done&... done) {
  if (next == args.size()) {
    if constexpr (sizeof...(Done) > 0) callable(done...);
    return;
  }
  if constexpr (sizeof...(Done) < 4) {
    if (args[next].tensor) call(callable, args, next + 1, done..., *args[next].tensor);
    else call(callable, args, next + 1, done..., args[next].any);
  }
}

std::vector<Arg> parse_all(int argc, char** argv, int from) {
  std::vector<Arg> args(argc - from);
  for (int i = from; i < argc; i++) parse(argv[i], &args[i - from]);
  return args;
}

void print(const std::vector<Arg>& args) {
  for (const Arg& arg : args)
    if (arg.tensor) std::printf("%g ", arg.sum());
  std::printf("\n");
}

tlaot::FactoryArgs factory(const std::string& text) {
  tlaot::FactoryArgs out;
  for (const auto& one : split(text, ',')) {
    const auto parts = split(one, '=');
    if (parts[1][0] == '\'') out.emplace(parts[0], parts[1].substr(1, parts[1].size() - 2));
    else if (parts[1] == "true" || parts[1] == "false") out.emplace(parts[0], parts[1] == "true");
    else if (parts[1].find('.') != std::string::npos) out.emplace(parts[0], std::stod(parts[1]));
    else out.emplace(parts[0], std::stoi(parts[1]));
  }
  return out;
}

int call_in_threads(int argc, char** argv) {
  const tlaot::Kernel kernel = tlaot::Package(std::string(argv[2])).kernel(argv[3]);
  const int count = std::stoi(argv[4]), calls = std::stoi(argv[5]);
  std::atomic<int> ready{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < count; t++)
    threads.emplace_back([&] {
      auto args = parse_all(argc, argv, 6);
      for (ready++; ready < count;) {}
      for (int i = 0; i < calls; i++) {
        std::memset(args.back().memory.data(), 0, args.back().bytes);
        call(kernel, args, 0);
        if (args.back().sum() != args[0].sum() * static_cast<double>(args.size() - 1)) wrong++;
      }
    });
  for (auto& thread : threads) thread.join();
  std::printf("%d wrong\n", wrong.load());
  return 0;
}

int weigh_targets(const std::string& targets, const std::string& capabilities) {
  for (const auto& text : split(targets, ','))
    for (const auto& device : split(capabilities, ',')) {
      const auto parts = split(device, '.');
      const tlaot::detail::Capability capability{std::stoi(parts[0]), std::stoi(parts[1])};
      const auto target = tlaot::detail::read_target(text, "test");
      std::printf("%s %s %d", text.c_str(), device.c_str(), target.runs_on(capability));
      for (int one : target.preference(capability)) std::printf(" %d", one);
      std::printf("\n");
    }
  return 0;
}

int look_at_streams() {
  int one = 0, two = 0;
  const auto now = [] { return TVMFFIEnvGetStream(kDLCUDA, 1); };
  void* before = now();
  {
    tlaot::StreamScope outer(1, &one);
    bool right = now() == &one;
    {
      tlaot::StreamScope inner(1, &two);
      right = right && now() == &two;
    }
    std::printf("%d ", right && now() == &one);
  }
  std::printf("%d\n", now() == before);
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int drive(int argc, char** argv) {
  try {
    const std::string what = argv[1];
    if (what == "stream") return look_at_streams();
    if (what == "targets") return weigh_targets(argv[2], argv[3]);
    if (what == "threads") return call_in_threads(argc, argv);
    if (what == "names") {
      for (const auto& name : tlaot::Package(std::string(argv[2])).names()) std::printf("%s ", name.c_str());
      std::printf("\n");
      return 0;
    }
    auto args = parse_all(argc, argv, what == "package" ? 5 : 3);
    if (what == "package") {
      tlaot::Kernel kernel = tlaot::Package(split(argv[2], ':')).kernel(argv[3]);
      if (std::strcmp(argv[4], "-")) kernel = kernel.bind(factory(argv[4]));
      call(kernel, args, 0);
    } else {
      call(tlaot::Function(std::string(argv[2])), args, 0);
    }
    print(args);
    return 0;
  } catch (const tlaot::Error& error) {
    std::printf("%s\n%s\n", error.kind().c_str(), error.what());
    return 1;
  }
}
