/* Calls kernels that tlaot packaged from C++17, without Python: header-only, over the TVM FFI C ABI of libtvm_ffi.so.
 *
 *   tlaot::Package package("/usr/lib/python3/site-packages/my_package");
 *   tlaot::Kernel add = package.kernel("add");
 *   std::vector<float> a(n), b(n), c(n);
 *   add(tlaot::Tensor(a.data(), {n}), tlaot::Tensor(b.data(), {n}), tlaot::Tensor(c.data(), {n}));
 *
 * Compile with the flags of `tlaot include --cxxflags` and `tlaot include --ldflags`. */
#ifndef TLAOT_TLAOT_H_
#define TLAOT_TLAOT_H_

#include "error.h"
#include "function.h"
#include "package.h"

#endif
