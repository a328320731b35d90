/* ResNet-18 and ResNet-50, as torchvision arranges them (v1.5: in a bottleneck the stride is on the 3x3).
 *
 * He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2015. Names, shapes, order of
 * registration and initial distributions are those of torchvision.models.resnet18 and resnet50: convolutions
 * N(0, sqrt(2 / fan_out)), batch norms 1 and 0, the classifier uniform in ±1 / sqrt(fan_in). */
#ifndef WORKER_MODEL_RESNET_H
#define WORKER_MODEL_RESNET_H

#include "kernels/params/params.h"
#include "kernels/tape/tape.h"

struct resnet_config {
    uint32_t depth;    /* 18 or 50 */
    uint32_t channels; /* of the images */
    uint32_t classes;
    uint32_t width; /* channels of the first stage: 64 is torchvision's; the others follow from it */
};

struct resnet;

/* Registers its parameters with `params` (which is built afterwards, and outlives the model). Errors of
 * params_add. */
enum status resnet_new(struct resnet **out, const struct resnet_config *config, struct params *params,
                       struct error *error);
void resnet_free(struct resnet *resnet);

/* images (n, channels, h, w) -> logits (n, classes); h and w of at least 1. Training normalizes with the
 * batch's own statistics, and keeps them in the tape's memory. */
struct variable *resnet_forward(struct resnet *resnet, struct tape *tape, struct variable *images,
                                bool training);

/* Reads the means and unbiased variances of the last training forward into `statistics`
 * (params_buffer_elements, host, float32), as tape_read_later does: each at the offset of its running one in
 * the buffers' slab, zeros in the gaps. Before tape_finish. The parameter server moves the running ones. */
enum status resnet_read_statistics(struct resnet *resnet, struct tape *tape, float *statistics,
                                   struct error *error);

#endif
