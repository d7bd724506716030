/* NVRTC has no C library; cuda.h asks for the fixed-width integers. The same types as in CCCL and TileLang's headers. */
#ifndef TLAOT_NVRTC_STDINT_H
#define TLAOT_NVRTC_STDINT_H
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef signed short int16_t;
typedef unsigned short uint16_t;
typedef signed int int32_t;
typedef unsigned int uint32_t;
typedef signed long long int64_t;
typedef unsigned long long uint64_t;
#endif
