/* A ResNet's running statistics, moved in one process as a parameter server moves them between many. */
#ifndef TEST_WORKER_MODEL_RESNET_STATISTICS_H
#define TEST_WORKER_MODEL_RESNET_STATISTICS_H

#include "worker/model/resnet.h"

/* Moves every running mean and variance towards that of the last training forward (momentum 0.1) and counts
 * it in num_batches_tracked; between the walk and tape_finish. Errors of resnet_read_statistics. */
enum status resnet_statistics_move(struct resnet *resnet, struct tape *tape, struct params *params,
                                   struct error *error);

#endif
