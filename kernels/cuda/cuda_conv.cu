/* Linear layers and convolutions. A linear layer is a 1x1 convolution of one-pixel images, so that cuDNN
 * fuses its bias. The ReLU behind a linear layer is fused for a captured policy (cuda_policy.cu), the only
 * caller that sets attributes.relu; it has no backward.
 *
 * Only algorithms that cuDNN documents as deterministic are chosen, and only plain float32 arithmetic
 * (CUDNN_FMA_MATH: the default may round the factors to TF32). */
#include "kernels/cuda/cuda_internal.h"

static enum status describe_convolution(struct cuda *cuda, struct plan *plan, const struct tensor *about,
                                        struct error *error)
{
    const struct image_sizes *s = &plan->key.image;
    const struct element_window *w = &s->window;
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

static enum status plan_of(struct cuda *cuda, const struct op_call *call, struct plan **out,
                           struct error *error)
{
    const uint32_t *x = call->in[0]->shape.size, *weight = call->in[1]->shape.size;
    struct plan_key key = {};
    key.kind = PLAN_CONVOLUTION;
    key.image = {x[0], x[1], weight[0], cuda_window(call)};
    return cuda_plan(cuda, &key, describe_convolution, call->in[0], out, error);
}

/* ---- the passes: preferred algorithm, its workspace, what cuDNN proposes instead, the call ---- */

enum { PROPOSALS_MAX = 16 };

struct forward_pass {
    typedef cudnnConvolutionFwdAlgo_t algorithm;
    typedef cudnnConvolutionFwdAlgoPerf_t proposal;
    static const enum pass number = FORWARD;
    static const algorithm preferred = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;

    static constexpr const char *name = "cudnnConvolutionForward";

    static cudnnStatus_t workspace(struct cuda *cuda, const struct plan *plan, size_t *bytes)
    {
        return cudnnGetConvolutionForwardWorkspaceSize(cuda->cudnn, plan->x, plan->weight, plan->convolution,
                                                       plan->y, preferred, bytes);
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

    static constexpr const char *name = "cudnnConvolutionBackwardData";

    static cudnnStatus_t workspace(struct cuda *cuda, const struct plan *plan, size_t *bytes)
    {
        return cudnnGetConvolutionBackwardDataWorkspaceSize(cuda->cudnn, plan->weight, plan->y,
                                                            plan->convolution, plan->x, preferred, bytes);
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

    static constexpr const char *name = "cudnnConvolutionBackwardFilter";

    static cudnnStatus_t workspace(struct cuda *cuda, const struct plan *plan, size_t *bytes)
    {
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(
            cuda->cudnn, plan->x, plan->y, plan->convolution, plan->weight, preferred, bytes);
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

static bool unsupported(cudnnStatus_t code)
{
    const int category = CUDNN_STATUS_CATEGORY((int)code);
    return category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM;
}

/* Chooses the preferred algorithm. Where cuDNN does not support it, or it was tried already, chooses the
 * first other algorithm that cuDNN proposes, is deterministic and computes in plain float32. */
template <class Pass>
static enum status choose(struct cuda *cuda, struct plan *plan, bool tried, const struct tensor *about,
                          struct error *error)
{
    struct pass_choice *choice = &plan->choice[Pass::number];
    typename Pass::proposal proposals[PROPOSALS_MAX];
    char shape[SHAPE_TEXT_BYTES];
    int count = 0;
    choice->algorithm = Pass::preferred;
    if (!tried && Pass::workspace(cuda, plan, &choice->bytes) == CUDNN_STATUS_SUCCESS)
        return STATUS_OK;
    const cudnnStatus_t code = Pass::propose(cuda, plan, &count, proposals);
    for (int i = 0; code == CUDNN_STATUS_SUCCESS && i < count; i++)
        if (proposals[i].status == CUDNN_STATUS_SUCCESS && proposals[i].determinism == CUDNN_DETERMINISTIC &&
            proposals[i].algo != Pass::preferred &&
            (proposals[i].mathType == CUDNN_FMA_MATH || proposals[i].mathType == CUDNN_DEFAULT_MATH)) {
            choice->algorithm = proposals[i].algo;
            choice->bytes = proposals[i].memory;
            return STATUS_OK;
        }
    return error_set(error, STATUS_INTERNAL,
                     "cuDNN has no deterministic float32 algorithm for %s on %.60s of %s", Pass::name,
                     about->name != NULL ? about->name : "a tensor", shape_text(&about->shape, shape));
}

/* cuDNN may refuse an algorithm only when it runs; then a second algorithm is chosen. */
template <class Pass>
static enum status run(struct cuda *cuda, struct plan *plan, const struct op_call *call, const void *dy,
                       struct error *error)
{
    struct pass_choice *choice = &plan->choice[Pass::number];
    const struct tensor *about = call->in[0];
    for (bool tried = false;; tried = true) {
        if (!choice->ran)
            TRY(choose<Pass>(cuda, plan, tried, about, error));
        TRY(cuda_workspace(cuda, choice->bytes, error));
        const cudnnStatus_t code = Pass::run(cuda, plan, choice, call, dy);
        if (code == CUDNN_STATUS_SUCCESS) {
            choice->ran = true;
            return STATUS_OK;
        }
        if (choice->ran || tried || !unsupported(code))
            return cudnn_failed(error, Pass::name, code, about);
    }
}

/* ---- forward ---- */

static enum status forward_separate(struct cuda *cuda, struct plan *plan, const struct op_call *call,
                                    struct error *error)
{
    const struct tensor *y = call->out[0];
    const struct image_sizes *s = &plan->key.image;
    const float *bias = cuda_floats(call->in[2]);
    const bool relu = call->attributes.relu;
    TRY(run<forward_pass>(cuda, plan, call, NULL, error));
    if (bias == NULL)
        return STATUS_OK;
    const uint32_t channels = s->outputs, plane = s->window.out[0] * s->window.out[1];
    float *to = cuda_floats(y);
    return cuda_each(cuda, cuda_elements(y), "launch of bias", y, error, [=] __device__(size_t i) {
        to[i] = element_bias(to[i], bias, i, channels, plane, relu);
    });
}

/* y = activation(convolution + 0 z + bias). A factor of 0 means that z is not read; y is passed for it. The
 * identity is fused with IMPLICIT_PRECOMP_GEMM only. */
static cudnnStatus_t forward_fused(struct cuda *cuda, const struct plan *plan, const struct op_call *call)
{
    const struct tensor *y = call->out[0];
    cudnnActivationDescriptor_t activation = cuda->identity;
    if (call->attributes.relu)
        activation = plan->fusion == FUSED ? cuda->relu : cuda->relu_plain;
    return cudnnConvolutionBiasActivationForward(
        cuda->cudnn, &ONE, plan->x, call->in[0]->data, plan->weight, call->in[1]->data, plan->convolution,
        forward_pass::preferred, cuda->workspace, plan->choice[FORWARD].bytes, &ZERO, plan->y, y->data,
        plan->channels, call->in[2]->data, activation, plan->y, y->data);
}

/* Runs the first kind of fusion that cuDNN supports, and keeps it in plan->fusion. STATUS_AGAIN: cuDNN
 * supports none. */
static enum status try_fused(struct cuda *cuda, struct plan *plan, const struct op_call *call,
                             struct error *error)
{
    struct pass_choice *choice = &plan->choice[FORWARD];
    if (call->in[2] == NULL || plan->fusion == SEPARATE)
        return STATUS_AGAIN;
    if (!choice->ran)
        TRY(choose<forward_pass>(cuda, plan, false, call->in[0], error));
    if (choice->algorithm != forward_pass::preferred)
        plan->fusion = SEPARATE;
    TRY(cuda_workspace(cuda, choice->bytes, error));
    while (plan->fusion != SEPARATE) {
        const cudnnStatus_t code = forward_fused(cuda, plan, call);
        if (code == CUDNN_STATUS_SUCCESS) {
            choice->ran = true;
            return STATUS_OK;
        }
        if (!unsupported(code))
            return cudnn_failed(error, "cudnnConvolutionBiasActivationForward", code, call->in[0]);
        plan->fusion = (enum fusion)(plan->fusion + 1);
    }
    return STATUS_AGAIN;
}

enum status cuda_convolution(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    struct plan *plan;
    TRY(cuda_output(call, call->out[0], error));
    TRY(plan_of(cuda, call, &plan, error));
    const enum status status = try_fused(cuda, plan, call, error);
    return status == STATUS_AGAIN ? forward_separate(cuda, plan, call, error) : status;
}

/* ---- backward ---- */

enum status cuda_convolution_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    struct plan *plan;
    const void *dy = call->dout[0]->data;
    TRY(plan_of(cuda, call, &plan, error));
    for (int i = 0; i < 3; i++)
        if (call->din[i] != NULL)
            TRY(cuda_output(call, call->din[i], error));
    if (call->din[0] != NULL)
        TRY(run<data_pass>(cuda, plan, call, dy, error));
    if (call->din[1] != NULL)
        TRY(run<filter_pass>(cuda, plan, call, dy, error));
    if (call->din[2] != NULL)
        CUDNN_TRY(call->in[0], cudnnConvolutionBackwardBias, cuda->cudnn, &ONE, plan->y, dy, &ZERO,
                  plan->channels, call->din[2]->data);
    return STATUS_OK;
}
