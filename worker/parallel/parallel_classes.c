/* The table itself: constant data. */
#include "worker/parallel/parallel_classes.h"

#include "worker/autograd/dist_optimizer.h"
#include "worker/parallel/layer_object.h"
#include "worker/parallel/parallel_trainer.h"

const struct rref_class *const parallel_classes[PARALLEL_CLASSES] = {
    &layer_classes[JOB_LAYER_EMBEDDING],
    &layer_classes[JOB_LAYER_LSTM],
    &layer_classes[JOB_LAYER_DECODER],
    &dist_parameter_class,
    &dist_optimizer_class,
    &parallel_trainer_class,
};
