/* NVRTC has no C library; cuda.h asks for this header and uses size_t, which NVRTC has built in. */
#ifndef TLAOT_NVRTC_STDLIB_H
#define TLAOT_NVRTC_STDLIB_H
#endif
