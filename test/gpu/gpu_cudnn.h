/* The stand-in for cuDNN, as tests see it: which of its parts refuse to work, and how strict it is.
 *
 * A part is an algorithm or a fusion:
 *
 *     FWD_ALGO_..., BWD_DATA_ALGO_..., BWD_FILTER_ALGO_...   cuDNN's names without CUDNN_CONVOLUTION_
 *     FUSED                 cudnnConvolutionBiasActivationForward as a whole
 *     FUSED_IDENTITY        the same with CUDNN_ACTIVATION_IDENTITY
 *     FUSED_RELU            the same with CUDNN_ACTIVATION_RELU
 *     FUSED_PROPAGATE_NAN   the same with CUDNN_ACTIVATION_RELU and CUDNN_PROPAGATE_NAN
 *
 * A part that is refused returns CUDNN_STATUS_NOT_SUPPORTED. An algorithm with ":run" behind its name still
 * has a workspace and is still proposed, and refuses only when it is to run. */
#ifndef TEST_GPU_GPU_CUDNN_H
#define TEST_GPU_GPU_CUDNN_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* Refuses the parts in `names`, separated by commas, beside those refused before. NULL: refuses none any
 * more. A name that does not exist is misuse. The environment's GPU_CUDNN_REFUSE is read at the first use. */
void gpu_cudnn_refuse(const char *names);

/* Makes misuse of every CUDNN_STATUS_BAD_PARAM, which a caller may take for a lack of support and hide. Off,
 * unless the environment has GPU_CUDNN_STRICT. A fault that a test has armed is no misuse. */
void gpu_cudnn_strict(bool on);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
