// `weighted` along a stretch of the pool.
#include "instances.h"

namespace kvjax {

KVJAX_OF_TYPES(KVJAX_WEIGHTED, Stretch)

}  // namespace kvjax
