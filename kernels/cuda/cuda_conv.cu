/* Linear layers and convolutions. A linear layer is a 1x1 convolution of one-pixel images, so that cuDNN
 * fuses its bias. cuDNN could fuse a ReLU too, but only one that makes 0 of a NaN, so this file fuses none.
 *
 * Only algorithms that cuDNN documents as deterministic are chosen, and only plain float32 arithmetic
 * (CUDNN_FMA_MATH: the default may round the factors to TF32). */
#include "kernels/cuda/cuda_internal.h"

#include <cstdio>

static enum status describe_convolution(struct cuda *cuda, struct plan *plan, const struct tensor *about,
                                        struct error *error)
{
    const struct image_sizes *s = &plan->key.image;
    const struct window *w = &s->window;
    (void)cuda;
    TRY(cuda_describe(&plan->x, s->n, s->c, w->size[0], w->size[1], about, error));
    TRY(cuda_describe(&plan->y, s->n, s->outputs, w->out[0], w->out[1], about, error));
    TRY(cuda_describe(&plan->channels, 1, s->outputs, 1, 1, about, error));
    CUDNN_TRY(about, cudnnCreateFilterDescriptor, &plan->weight);
    CUDNN_TRY(about, cudnnSetFilter4dDescriptor, plan->weight, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW,
              (int)s->outputs, (int)s->c, (int)w->kernel[0], (int)w->kernel[1]);
    CUDNN_TRY(about, cudnnCreateConvolutionDescriptor, &plan->convolution);
    CUDNN_TRY(about, cudnnSetConvolution2dDescriptor, plan->convolution, (int)w->padding[0],
              (int)w->padding[1], (int)w->stride[0], (int)w->stride[1], 1, 1, CUDNN_CROSS_CORRELATION,
              CUDNN_DATA_FLOAT);
    CUDNN_TRY(about, cudnnSetConvolutionMathType, plan->convolution, CUDNN_FMA_MATH);
    return STATUS_OK;
}

static enum status conv_plan_of(struct cuda *cuda, const struct op_call *call, struct plan **out,
                                struct error *error)
{
    const uint32_t *x = call->in[0]->shape.size, *weight = call->in[1]->shape.size;
    struct plan_key key = {};
    key.kind = PLAN_CONVOLUTION;
    key.image = {x[0], x[1], weight[0], cuda_window(call)};
    return cuda_plan(cuda, &key, describe_convolution, call->in[0], out, error);
}

/* ---- the passes: preferred algorithm, an algorithm's workspace, what cuDNN proposes, the call ----
 *
 * transforms: the bits of FFT and Winograd, which round more than a sum of products does. */

enum { PROPOSALS_MAX = 16 };

struct forward_pass {
    typedef cudnnConvolutionFwdAlgo_t algorithm;
    typedef cudnnConvolutionFwdAlgoPerf_t proposal;
    static const enum pass number = FORWARD;
    static const algorithm preferred = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    static const unsigned transforms =
        1u << CUDNN_CONVOLUTION_FWD_ALGO_FFT | 1u << CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING |
        1u << CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD | 1u << CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED;

    static constexpr const char *workspace_name = "cudnnGetConvolutionForwardWorkspaceSize";
    static constexpr const char *propose_name = "cudnnGetConvolutionForwardAlgorithm_v7";
    static constexpr const char *run_name = "cudnnConvolutionForward";

    static cudnnStatus_t workspace(struct cuda *cuda, const struct plan *plan, struct pass_choice *choice)
    {
        return cudnnGetConvolutionForwardWorkspaceSize(cuda->cudnn, plan->x, plan->weight, plan->convolution,
                                                       plan->y, (algorithm)choice->algorithm, &choice->bytes);
    }
    static cudnnStatus_t propose(struct cuda *cuda, const struct plan *plan, int *count, proposal *proposals)
    {
        return cudnnGetConvolutionForwardAlgorithm_v7(cuda->cudnn, plan->x, plan->weight, plan->convolution,
                                                      plan->y, PROPOSALS_MAX, count, proposals);
    }
    static cudnnStatus_t run(struct cuda *cuda, const struct plan *plan, const struct pass_choice *choice,
                             const struct op_call *call, const void *dy)
    {
        (void)dy;
        return cudnnConvolutionForward(cuda->cudnn, &ONE, plan->x, call->in[0]->data, plan->weight,
                                       call->in[1]->data, plan->convolution, (algorithm)choice->algorithm,
                                       cuda->workspace, choice->bytes, &ZERO, plan->y, call->out[0]->data);
    }
};

struct data_pass {
    typedef cudnnConvolutionBwdDataAlgo_t algorithm;
    typedef cudnnConvolutionBwdDataAlgoPerf_t proposal;
    static const enum pass number = BACKWARD_DATA;
    static const algorithm preferred = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
    static const unsigned transforms = 1u << CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT |
                                       1u << CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING |
                                       1u << CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD |
                                       1u << CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED;

    static constexpr const char *workspace_name = "cudnnGetConvolutionBackwardDataWorkspaceSize";
    static constexpr const char *propose_name = "cudnnGetConvolutionBackwardDataAlgorithm_v7";
    static constexpr const char *run_name = "cudnnConvolutionBackwardData";

    static cudnnStatus_t workspace(struct cuda *cuda, const struct plan *plan, struct pass_choice *choice)
    {
        return cudnnGetConvolutionBackwardDataWorkspaceSize(cuda->cudnn, plan->weight, plan->y,
                                                            plan->convolution, plan->x,
                                                            (algorithm)choice->algorithm, &choice->bytes);
    }
    static cudnnStatus_t propose(struct cuda *cuda, const struct plan *plan, int *count, proposal *proposals)
    {
        return cudnnGetConvolutionBackwardDataAlgorithm_v7(
            cuda->cudnn, plan->weight, plan->y, plan->convolution, plan->x, PROPOSALS_MAX, count, proposals);
    }
    static cudnnStatus_t run(struct cuda *cuda, const struct plan *plan, const struct pass_choice *choice,
                             const struct op_call *call, const void *dy)
    {
        return cudnnConvolutionBackwardData(cuda->cudnn, &ONE, plan->weight, call->in[1]->data, plan->y, dy,
                                            plan->convolution, (algorithm)choice->algorithm, cuda->workspace,
                                            choice->bytes, &ZERO, plan->x, call->din[0]->data);
    }
};

struct filter_pass {
    typedef cudnnConvolutionBwdFilterAlgo_t algorithm;
    typedef cudnnConvolutionBwdFilterAlgoPerf_t proposal;
    static const enum pass number = BACKWARD_FILTER;
    static const algorithm preferred = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
    static const unsigned transforms = 1u << CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT |
                                       1u << CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING |
                                       1u << CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD |
                                       1u << CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED;

    static constexpr const char *workspace_name = "cudnnGetConvolutionBackwardFilterWorkspaceSize";
    static constexpr const char *propose_name = "cudnnGetConvolutionBackwardFilterAlgorithm_v7";
    static constexpr const char *run_name = "cudnnConvolutionBackwardFilter";

    static cudnnStatus_t workspace(struct cuda *cuda, const struct plan *plan, struct pass_choice *choice)
    {
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(cuda->cudnn, plan->x, plan->y,
                                                              plan->convolution, plan->weight,
                                                              (algorithm)choice->algorithm, &choice->bytes);
    }
    static cudnnStatus_t propose(struct cuda *cuda, const struct plan *plan, int *count, proposal *proposals)
    {
        return cudnnGetConvolutionBackwardFilterAlgorithm_v7(cuda->cudnn, plan->x, plan->y, plan->convolution,
                                                             plan->weight, PROPOSALS_MAX, count, proposals);
    }
    static cudnnStatus_t run(struct cuda *cuda, const struct plan *plan, const struct pass_choice *choice,
                             const struct op_call *call, const void *dy)
    {
        return cudnnConvolutionBackwardFilter(cuda->cudnn, &ONE, plan->x, call->in[0]->data, plan->y, dy,
                                              plan->convolution, (algorithm)choice->algorithm,
                                              cuda->workspace, choice->bytes, &ZERO, plan->weight,
                                              call->din[1]->data);
    }
};

/* ---- the choice of an algorithm ---- */

static bool unsupported(cudnnStatus_t code)
{
    return CUDNN_STATUS_CATEGORY((int)code) == CUDNN_STATUS_NOT_SUPPORTED;
}

/* The algorithms to try for a pass, in order. */
struct candidates {
    int count, algorithm[1 + PROPOSALS_MAX];
};

/* Appends cuDNN's proposals that are deterministic and compute in plain float32, in cuDNN's order, but FFT
 * and Winograd last. */
template <class Pass>
static enum status propose(struct cuda *cuda, const struct plan *plan, struct candidates *candidates,
                           const struct tensor *about, struct error *error)
{
    typename Pass::proposal proposals[PROPOSALS_MAX];
    int count = 0;
    const cudnnStatus_t code = Pass::propose(cuda, plan, &count, proposals);
    if (code != CUDNN_STATUS_SUCCESS)
        return cudnn_failed(error, Pass::propose_name, code, about);
    for (unsigned transform = 0; transform < 2; transform++)
        for (int i = 0; i < count; i++)
            if (proposals[i].status == CUDNN_STATUS_SUCCESS &&
                proposals[i].determinism == CUDNN_DETERMINISTIC && proposals[i].algo != Pass::preferred &&
                (proposals[i].mathType == CUDNN_FMA_MATH || proposals[i].mathType == CUDNN_DEFAULT_MATH) &&
                (Pass::transforms >> proposals[i].algo & 1) == transform)
                candidates->algorithm[candidates->count++] = proposals[i].algo;
    return STATUS_OK;
}

/* What cuDNN says of an attempt, and which function said so. */
struct verdict {
    cudnnStatus_t code;
    const char *function;
};

/* Runs choice->algorithm. */
template <class Pass>
static enum status attempt(struct cuda *cuda, struct plan *plan, const struct op_call *call, const void *dy,
                           struct verdict *verdict, struct error *error)
{
    struct pass_choice *choice = &plan->choice[Pass::number];
    if (!choice->ran) {
        *verdict = {Pass::workspace(cuda, plan, choice), Pass::workspace_name};
        if (verdict->code != CUDNN_STATUS_SUCCESS)
            return STATUS_OK;
    }
    TRY(cuda_workspace(cuda, choice->bytes, error));
    *verdict = {Pass::run(cuda, plan, choice, call, dy), Pass::run_name};
    return STATUS_OK;
}

/* The failure of a pass that has tried the first `count` candidates. */
static enum status pass_failed(const struct candidates *tried, int count, const struct verdict *verdict,
                               const struct tensor *about, struct error *error)
{
    char text[80 + 8 * (1 + PROPOSALS_MAX)];
    int length = snprintf(text, sizeof text, "%s by algorithm%s", verdict->function, count > 1 ? "s" : "");
    for (int i = 0; i < count; i++)
        length += snprintf(text + length, sizeof text - (size_t)length, "%s %d", i > 0 ? "," : "",
                           tried->algorithm[i]);
    return cudnn_failed(error, text, verdict->code, about);
}

/* Runs the algorithm that has run before. The first time: the preferred one, then cuDNN's proposals, until
 * one is supported; cuDNN may refuse an algorithm only when it runs. */
template <class Pass>
static enum status run(struct cuda *cuda, struct plan *plan, const struct op_call *call, const void *dy,
                       struct error *error)
{
    struct pass_choice *choice = &plan->choice[Pass::number];
    const struct tensor *about = call->in[0];
    struct candidates candidates = {1, {choice->ran ? choice->algorithm : (int)Pass::preferred}};
    for (int i = 0;; i++) {
        struct verdict verdict;
        choice->algorithm = candidates.algorithm[i];
        TRY(attempt<Pass>(cuda, plan, call, dy, &verdict, error));
        if (verdict.code == CUDNN_STATUS_SUCCESS) {
            choice->ran = true;
            return STATUS_OK;
        }
        const bool other_may = !choice->ran && unsupported(verdict.code);
        if (other_may && i == 0)
            TRY(propose<Pass>(cuda, plan, &candidates, about, error));
        if (!other_may || i + 1 == candidates.count)
            return pass_failed(&candidates, i + 1, &verdict, about, error);
    }
}

/* ---- forward ---- */

static enum status forward_separate(struct cuda *cuda, struct plan *plan, const struct op_call *call,
                                    struct error *error)
{
    const struct tensor *y = call->out[0];
    const struct image_sizes *s = &plan->key.image;
    const float *bias = cuda_floats(call->in[2]);
    TRY(run<forward_pass>(cuda, plan, call, NULL, error));
    if (bias == NULL)
        return STATUS_OK;
    const uint32_t channels = s->outputs, plane = s->window.out[0] * s->window.out[1];
    float *to = cuda_floats(y);
    return cuda_each(cuda, cuda_elements(y), "launch of bias", y, error,
                     [=] __device__(size_t i) { to[i] += bias[i / plane % channels]; });
}

/* A convolution and its bias: y = identity(convolution + 0 z + bias). A factor of 0 means that z is not read;
 * y is passed for it. cuDNN fuses the identity with IMPLICIT_PRECOMP_GEMM only. */
struct fused_pass : forward_pass {
    static constexpr const char *run_name = "cudnnConvolutionBiasActivationForward";

    static cudnnStatus_t run(struct cuda *cuda, const struct plan *plan, const struct pass_choice *choice,
                             const struct op_call *call, const void *dy)
    {
        const struct tensor *y = call->out[0];
        (void)dy;
        return cudnnConvolutionBiasActivationForward(
            cuda->cudnn, &ONE, plan->x, call->in[0]->data, plan->weight, call->in[1]->data, plan->convolution,
            preferred, cuda->workspace, choice->bytes, &ZERO, plan->y, y->data, plan->channels,
            call->in[2]->data, cuda->identity, plan->y, y->data);
    }
};

/* STATUS_AGAIN: there is no bias, or cuDNN does not fuse it for this shape. */
static enum status try_fused(struct cuda *cuda, struct plan *plan, const struct op_call *call,
                             struct error *error)
{
    struct pass_choice *choice = &plan->choice[FORWARD];
    const struct candidates candidates = {1, {forward_pass::preferred}};
    struct verdict verdict;
    if (call->in[2] == NULL || plan->separate ||
        (choice->ran && choice->algorithm != forward_pass::preferred))
        return STATUS_AGAIN;
    choice->algorithm = forward_pass::preferred;
    TRY(attempt<fused_pass>(cuda, plan, call, NULL, &verdict, error));
    if (verdict.code == CUDNN_STATUS_SUCCESS) {
        choice->ran = true;
        return STATUS_OK;
    }
    plan->separate = unsupported(verdict.code);
    return plan->separate ? STATUS_AGAIN : pass_failed(&candidates, 1, &verdict, call->in[0], error);
}

enum status cuda_convolution(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    struct plan *plan;
    TRY(conv_plan_of(cuda, call, &plan, error));
    const enum status status = try_fused(cuda, plan, call, error);
    return status == STATUS_AGAIN ? forward_separate(cuda, plan, call, error) : status;
}

/* ---- backward ---- */

enum status cuda_convolution_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    struct plan *plan;
    const void *dy = call->dout[0]->data;
    TRY(conv_plan_of(cuda, call, &plan, error));
    if (call->din[0] != NULL)
        TRY(run<data_pass>(cuda, plan, call, dy, error));
    if (call->din[1] != NULL)
        TRY(run<filter_pass>(cuda, plan, call, dy, error));
    if (call->din[2] != NULL)
        CUDNN_TRY(call->in[0], cudnnConvolutionBackwardBias, cuda->cudnn, &ONE, plan->y, dy, &ZERO,
                  plan->channels, call->din[2]->data);
    return STATUS_OK;
}
