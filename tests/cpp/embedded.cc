/* A kernel with one input and one output of two dimensions, called from C++ inside of a process that has Python and the FFI. */
#include <tlaot/tlaot.h>

#include <cstdio>

extern "C" __attribute__((visibility("default"))) int call_kernel(const char* folder, const char* name, void* x, void* y,
                                                                   const char* dtype, int64_t rows, int64_t columns, int device_id,
                                                                   void* stream, char* message, size_t room) {
  try {
    const DLDevice device = device_id < 0 ? tlaot::cpu() : tlaot::cuda(device_id);
    const tlaot::Kernel kernel = tlaot::Package(std::string(folder)).kernel(name);
    const tlaot::Tensor input(static_cast<const void*>(x), tlaot::dtype(dtype), {rows, columns}, device);
    const tlaot::Tensor output(y, tlaot::dtype(dtype), {rows, columns}, device);
    tlaot::StreamScope scope(device_id < 0 ? 0 : device_id, stream);
    kernel(input, output);
    return 0;
  } catch (const tlaot::Error& error) {
    std::snprintf(message, room, "%s: %s", error.kind().c_str(), error.what());
    return 1;
  }
}
