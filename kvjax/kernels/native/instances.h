// `products` and `weighted` for all types of numbers: compiled once each, in units of their own, beside one another.
#pragma once

#include "products.h"
#include "weighted.h"

#if defined(__AVX512BF16__)
#define KVJAX_OF_PAIRS(INSTANCE, SLOTS) INSTANCE(BFloat16, BFloat16, SLOTS)
#else
#define KVJAX_OF_PAIRS(INSTANCE, SLOTS)
#endif
#define KVJAX_OF_TYPES(INSTANCE, SLOTS) \
  INSTANCE(float, float, SLOTS) INSTANCE(float, Float16, SLOTS) INSTANCE(float, BFloat16, SLOTS) KVJAX_OF_PAIRS(INSTANCE, SLOTS)

#define KVJAX_PRODUCTS(Q, T, SLOTS) template void products(const Rows<Q>&, const T*, SLOTS, int64_t, float*, int64_t);
#define KVJAX_WEIGHTED(W, T, SLOTS) template void weighted(const W*, int64_t, int64_t, const T*, SLOTS, int64_t, float*);
#define KVJAX_EXTERN_PRODUCTS(Q, T, SLOTS) extern KVJAX_PRODUCTS(Q, T, SLOTS)
#define KVJAX_EXTERN_WEIGHTED(W, T, SLOTS) extern KVJAX_WEIGHTED(W, T, SLOTS)

namespace kvjax {

KVJAX_OF_TYPES(KVJAX_EXTERN_PRODUCTS, Stretch)
KVJAX_OF_TYPES(KVJAX_EXTERN_PRODUCTS, Listed)
KVJAX_OF_TYPES(KVJAX_EXTERN_WEIGHTED, Stretch)
KVJAX_OF_TYPES(KVJAX_EXTERN_WEIGHTED, Listed)

}  // namespace kvjax
