// `products` along a list of slots.
#include "instances.h"

namespace kvjax {

KVJAX_OF_TYPES(KVJAX_PRODUCTS, Listed)

}  // namespace kvjax
