/* Runs the packaged softmax of tlaot's sample from C++, without Python: a server would do the same with its own package.
 *
 *     pip install tlaot-*.whl                  # headers, sample_pkg and libtvm_ffi.so
 *     make                                     # or: cmake -B build && cmake --build build
 *     ./softmax "$(python3 -c 'import sample_pkg; print(*sample_pkg.__path__)')" 256 1024
 *
 * The folder is the installed package's. Which variant runs is decided as in Python, by shapes, dtypes and the processor;
 * a shape that was not packaged is an error that lists those that were. The program needs libtvm_ffi.so (apache-tvm-ffi's wheel
 * has it) and the package's folder, and no Python when it runs. On a GPU the tensors get device pointers and tlaot::cuda(0),
 * and a tlaot::StreamScope says the stream. */
#include <tlaot/tlaot.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

/* The sum of the worst row's error, against a plain softmax in double. */
double worst_error(const std::vector<float>& x, const std::vector<float>& y, int64_t rows, int64_t columns) {
  double worst = 0;
  for (int64_t i = 0; i < rows; i++) {
    const float* row = &x[i * columns];
    double peak = row[0], total = 0, error = 0;
    for (int64_t j = 0; j < columns; j++) peak = std::fmax(peak, row[j]);
    for (int64_t j = 0; j < columns; j++) total += std::exp(row[j] - peak);
    for (int64_t j = 0; j < columns; j++) error += std::fabs(std::exp(row[j] - peak) / total - y[i * columns + j]);
    worst = std::isfinite(error) ? std::fmax(worst, error) : INFINITY;
  }
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s PACKAGE_FOLDER ROWS COLUMNS\n", argv[0]);
    return 2;
  }
  const int64_t rows = std::atoll(argv[2]), columns = std::atoll(argv[3]);
  try {
    const tlaot::Package package(argv[1]);
    const tlaot::Kernel softmax = package.kernel("softmax");

    std::vector<float> x(rows * columns), y(rows * columns, -1.f);
    for (size_t i = 0; i < x.size(); i++) x[i] = static_cast<float>(i * 2654435761u % 1000) / 100.f;
    const float* input = x.data();  // a pointer to const is refused where the kernel writes
    softmax(tlaot::Tensor(input, {rows, columns}), tlaot::Tensor(y.data(), {rows, columns}));
    std::printf("worst row's error: %.2g\n", worst_error(x, y, rows, columns));

    // Any number of threads may call; a loop over one shape chooses once.
    const tlaot::Function chosen = softmax.select(tlaot::Tensor(input, {rows, columns}), tlaot::Tensor(y.data(), {rows, columns}));
    std::vector<std::vector<float>> outs(4, std::vector<float>(y.size()));
    std::vector<std::thread> threads;
    for (auto& out : outs)
      threads.emplace_back([&] { chosen(tlaot::Tensor(input, {rows, columns}), tlaot::Tensor(out.data(), {rows, columns})); });
    for (auto& thread : threads) thread.join();
    for (const auto& out : outs)
      if (out != y) return std::printf("threads: another result\n"), 1;
    std::printf("%zu threads: the same result\n", threads.size());
    return worst_error(x, y, rows, columns) < 1e-4 ? 0 : 1;
  } catch (const tlaot::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.kind().c_str(), error.what());
    return 1;
  }
}
