/* ResNet-50's training step as a bare chain of oneDNN primitives: what the library can do on this machine.
 *
 * The baseline of bench_models, and nothing else: no shapes are checked beyond what the library checks, no
 * loss is computed (the logits' gradient is made up), numbers mean nothing. The chain is hand-made: blocked
 * layouts from the first convolution to the pool, ReLU inside batch norms and adds, weights kept in the
 * forward's layout with only backward-data's copy repacked, every primitive and every byte prepared before,
 * gradients in buffers that are used again as soon as nobody reads them. One thread calls; the library's
 * regions are as wide as OpenMP's setting. */
#ifndef TEST_BASELINE_RESNET_ONEDNN_H
#define TEST_BASELINE_RESNET_ONEDNN_H

#include "kernels/base/status.h"

#include <stdint.h>

struct resnet_onednn;

/* For images (images, 3, size, size). STATUS_NO_MEMORY, or STATUS_INTERNAL with the library's status. */
enum status resnet_onednn_new(struct resnet_onednn **out, uint32_t images, uint32_t size, uint32_t classes,
                              struct error *error);
void resnet_onednn_free(struct resnet_onednn *net);

/* What of a step is run. */
enum resnet_onednn_part {
    RESNET_ONEDNN_ALL,       /* everything, the update (plain SGD) included */
    RESNET_ONEDNN_CONV_NORM, /* convolutions (all passes) and batch norms alone, on what the last step left */
};
enum status resnet_onednn_step(struct resnet_onednn *net, enum resnet_onednn_part part, struct error *error);

/* Multiplications and additions of all convolutions and the linear layer, in all passes of a step. */
double resnet_onednn_flops(const struct resnet_onednn *net);

#endif
