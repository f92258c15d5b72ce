// `weighted` along a list of slots.
#include "instances.h"

namespace kvjax {

KVJAX_OF_TYPES(KVJAX_WEIGHTED, Listed)

}  // namespace kvjax
