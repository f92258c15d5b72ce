// `products` along a stretch of the pool.
#include "instances.h"

namespace kvjax {

KVJAX_OF_TYPES(KVJAX_PRODUCTS, Stretch)

}  // namespace kvjax
