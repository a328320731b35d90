/* Linear layers and convolutions: a linear layer is a 1x1 convolution of one-pixel images, so that cuDNN
 * fuses its bias and activation like a convolution's.
 *
 * Only algorithms that cuDNN documents as deterministic are chosen, and only plain float32 arithmetic
 * (CUDNN_FMA_MATH: the default may round the factors to TF32). */
#include "kernels/cuda/cuda_internal.h"

#include <cstdlib>

/* How the bias and the ReLU are added; the first that cuDNN supports for the shape. */
enum fusion {
    FUSED,       /* in one call, whose ReLU lets a NaN through */
    FUSED_PLAIN, /* in one call, whose ReLU may make a zero of a NaN */
    SEPARATE,    /* by a kernel of ours */
};

struct conv_plan {
    struct plan plan;
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t weight;
    cudnnConvolutionDescriptor_t convolution;
    cudnnConvolutionFwdAlgo_t forward;
    cudnnConvolutionBwdDataAlgo_t backward_data;
    cudnnConvolutionBwdFilterAlgo_t backward_filter;
    size_t forward_bytes, data_bytes, filter_bytes;
    bool has_data, has_filter; /* the backward's algorithms are chosen */
    enum fusion fusion;
};

/* Sizes of one call, whichever of the two operations. */
struct conv_sizes {
    uint32_t n, c, h, w, outputs, kernel[2], stride[2], padding[2], out[2];
};

static struct conv_sizes sizes_of(const struct op_call *call)
{
    const uint32_t *x = call->in[0]->shape.size, *weight = call->in[1]->shape.size;
    struct conv_sizes s = {x[0], x[1], 1, 1, weight[0], {1, 1}, {1, 1}, {0, 0}, {1, 1}};
    if (call->op == OP_LINEAR)
        return s;
    s.h = x[2];
    s.w = x[3];
    for (int i = 0; i < 2; i++) {
        s.kernel[i] = weight[2 + i];
        s.stride[i] = call->attributes.stride[i];
        s.padding[i] = call->attributes.padding[i];
        s.out[i] = call->out[0]->shape.size[2 + i];
    }
    return s;
}

static void conv_plan_destroy(struct plan *plan)
{
    struct conv_plan *conv = (struct conv_plan *)plan;
    cudnnTensorDescriptor_t tensors[] = {conv->x, conv->y, conv->bias};
    for (cudnnTensorDescriptor_t tensor : tensors)
        if (tensor != NULL)
            cudnnDestroyTensorDescriptor(tensor);
    if (conv->weight != NULL)
        cudnnDestroyFilterDescriptor(conv->weight);
    if (conv->convolution != NULL)
        cudnnDestroyConvolutionDescriptor(conv->convolution);
    free(conv);
}

static enum status describe(struct conv_plan *plan, const struct conv_sizes *s, const struct tensor *about,
                            struct error *error)
{
    TRY(cuda_describe(&plan->x, s->n, s->c, s->h, s->w, about, error));
    TRY(cuda_describe(&plan->y, s->n, s->outputs, s->out[0], s->out[1], about, error));
    TRY(cuda_describe(&plan->bias, 1, s->outputs, 1, 1, about, error));
    CUDNN_TRY(about, cudnnCreateFilterDescriptor, &plan->weight);
    CUDNN_TRY(about, cudnnSetFilter4dDescriptor, plan->weight, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW,
              (int)s->outputs, (int)s->c, (int)s->kernel[0], (int)s->kernel[1]);
    CUDNN_TRY(about, cudnnCreateConvolutionDescriptor, &plan->convolution);
    CUDNN_TRY(about, cudnnSetConvolution2dDescriptor, plan->convolution, (int)s->padding[0],
              (int)s->padding[1], (int)s->stride[0], (int)s->stride[1], 1, 1, CUDNN_CROSS_CORRELATION,
              CUDNN_DATA_FLOAT);
    CUDNN_TRY(about, cudnnSetConvolutionMathType, plan->convolution, CUDNN_FMA_MATH);
    return STATUS_OK;
}

/* ---- algorithms: the one that is known to be good, else the first deterministic one that cuDNN proposes
 * ---- */

enum { PROPOSALS_MAX = 16 };

template <class Proposal> static bool acceptable(const Proposal &proposal)
{
    return proposal.status == CUDNN_STATUS_SUCCESS && proposal.determinism == CUDNN_DETERMINISTIC &&
           (proposal.mathType == CUDNN_FMA_MATH || proposal.mathType == CUDNN_DEFAULT_MATH);
}

template <class Proposal, class Algorithm>
static enum status take_proposal(const Proposal *proposals, int count, Algorithm *algorithm, size_t *bytes,
                                 const char *pass, const struct tensor *about, struct error *error)
{
    char shape[SHAPE_TEXT_BYTES];
    for (int i = 0; i < count; i++)
        if (acceptable(proposals[i])) {
            *algorithm = proposals[i].algo;
            *bytes = proposals[i].memory;
            return STATUS_OK;
        }
    return error_set(error, STATUS_INTERNAL, "cuDNN has no deterministic float32 algorithm for the %s of %s",
                     pass, shape_text(&about->shape, shape));
}

static enum status choose_forward(struct cuda *cuda, struct conv_plan *plan, const struct tensor *about,
                                  struct error *error)
{
    cudnnConvolutionFwdAlgoPerf_t proposals[PROPOSALS_MAX];
    int count = 0;
    plan->forward = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    if (cudnnGetConvolutionForwardWorkspaceSize(cuda->cudnn, plan->x, plan->weight, plan->convolution,
                                                plan->y, plan->forward,
                                                &plan->forward_bytes) == CUDNN_STATUS_SUCCESS)
        return STATUS_OK;
    CUDNN_TRY(about, cudnnGetConvolutionForwardAlgorithm_v7, cuda->cudnn, plan->x, plan->weight,
              plan->convolution, plan->y, PROPOSALS_MAX, &count, proposals);
    return take_proposal(proposals, count, &plan->forward, &plan->forward_bytes, "forward", about, error);
}

static enum status choose_backward_data(struct cuda *cuda, struct conv_plan *plan, const struct tensor *about,
                                        struct error *error)
{
    cudnnConvolutionBwdDataAlgoPerf_t proposals[PROPOSALS_MAX];
    int count = 0;
    if (plan->has_data)
        return STATUS_OK;
    plan->backward_data = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
    if (cudnnGetConvolutionBackwardDataWorkspaceSize(cuda->cudnn, plan->weight, plan->y, plan->convolution,
                                                     plan->x, plan->backward_data,
                                                     &plan->data_bytes) != CUDNN_STATUS_SUCCESS) {
        CUDNN_TRY(about, cudnnGetConvolutionBackwardDataAlgorithm_v7, cuda->cudnn, plan->weight, plan->y,
                  plan->convolution, plan->x, PROPOSALS_MAX, &count, proposals);
        TRY(take_proposal(proposals, count, &plan->backward_data, &plan->data_bytes, "backward over data",
                          about, error));
    }
    plan->has_data = true;
    return STATUS_OK;
}

static enum status choose_backward_filter(struct cuda *cuda, struct conv_plan *plan,
                                          const struct tensor *about, struct error *error)
{
    cudnnConvolutionBwdFilterAlgoPerf_t proposals[PROPOSALS_MAX];
    int count = 0;
    if (plan->has_filter)
        return STATUS_OK;
    plan->backward_filter = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
    if (cudnnGetConvolutionBackwardFilterWorkspaceSize(cuda->cudnn, plan->x, plan->y, plan->convolution,
                                                       plan->weight, plan->backward_filter,
                                                       &plan->filter_bytes) != CUDNN_STATUS_SUCCESS) {
        CUDNN_TRY(about, cudnnGetConvolutionBackwardFilterAlgorithm_v7, cuda->cudnn, plan->x, plan->y,
                  plan->convolution, plan->weight, PROPOSALS_MAX, &count, proposals);
        TRY(take_proposal(proposals, count, &plan->backward_filter, &plan->filter_bytes,
                          "backward over weights", about, error));
    }
    plan->has_filter = true;
    return STATUS_OK;
}

static enum status plan_of(struct cuda *cuda, const struct op_call *call, struct conv_plan **out,
                           struct error *error)
{
    const struct conv_sizes s = sizes_of(call);
    const struct plan_key key = {PLAN_CONVOLUTION,
                                 {s.n, s.c, s.h, s.w, s.outputs, s.kernel[0], s.kernel[1], s.stride[0],
                                  s.stride[1], s.padding[0], s.padding[1]}};
    struct plan *plan = cuda_plan_find(cuda, &key);
    *out = (struct conv_plan *)plan;
    if (plan != NULL)
        return STATUS_OK;
    plan = cuda_plan_new(sizeof **out, conv_plan_destroy);
    if (plan == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a convolution's plan");
    *out = (struct conv_plan *)plan;
    enum status status = describe(*out, &s, call->in[0], error);
    if (status == STATUS_OK)
        status = choose_forward(cuda, *out, call->in[0], error);
    if (status != STATUS_OK) {
        plan->destroy(plan);
        return status;
    }
    cuda_plan_keep(cuda, &key, plan);
    return STATUS_OK;
}

/* ---- forward ---- */

static __global__ void bias_kernel(size_t count, float *y, const float *bias, uint32_t channels,
                                   uint32_t plane, bool relu)
{
    const size_t i = cuda_thread();
    if (i < count)
        y[i] = element_bias(y[i], bias, i, channels, plane, relu);
}

static enum status forward_separate(struct cuda *cuda, const struct conv_plan *plan,
                                    const struct op_call *call, struct error *error)
{
    const struct tensor *x = call->in[0], *y = call->out[0];
    const struct conv_sizes s = sizes_of(call);
    const size_t count = cuda_elements(y);
    CUDNN_TRY(x, cudnnConvolutionForward, cuda->cudnn, &ONE, plan->x, x->data, plan->weight,
              call->in[1]->data, plan->convolution, plan->forward, cuda->workspace, plan->forward_bytes,
              &ZERO, plan->y, y->data);
    if (call->in[2] == NULL && !call->attributes.relu)
        return STATUS_OK;
    bias_kernel<<<cuda_blocks(count), THREADS, 0, cuda->stream>>>(
        count, cuda_floats(y), call->in[2] != NULL ? cuda_floats(call->in[2]) : NULL, s.outputs,
        s.out[0] * s.out[1], call->attributes.relu);
    LAUNCH_TRY(y, "bias");
    return STATUS_OK;
}

/* y = activation(convolution + 0 z + bias): with that 0, z is not read, and y stands for it. An activation
 * that is the identity is fused with IMPLICIT_PRECOMP_GEMM only. */
static cudnnStatus_t forward_fused(struct cuda *cuda, const struct conv_plan *plan,
                                   const struct op_call *call)
{
    const struct tensor *y = call->out[0];
    cudnnActivationDescriptor_t activation = cuda->identity;
    if (call->attributes.relu)
        activation = plan->fusion == FUSED ? cuda->relu : cuda->relu_plain;
    return cudnnConvolutionBiasActivationForward(
        cuda->cudnn, &ONE, plan->x, call->in[0]->data, plan->weight, call->in[1]->data, plan->convolution,
        plan->forward, cuda->workspace, plan->forward_bytes, &ZERO, plan->y, y->data, plan->bias,
        call->in[2]->data, activation, plan->y, y->data);
}

static enum status forward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    struct conv_plan *plan;
    TRY(cuda_output(call, call->out[0], error));
    TRY(plan_of(cuda, call, &plan, error));
    TRY(cuda_workspace(cuda, plan->forward_bytes, error));
    if (call->in[2] == NULL)
        return forward_separate(cuda, plan, call, error);
    if (plan->forward != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)
        plan->fusion = SEPARATE;
    while (plan->fusion != SEPARATE) {
        const cudnnStatus_t code = forward_fused(cuda, plan, call);
        if (code == CUDNN_STATUS_SUCCESS)
            return STATUS_OK;
        const int category = CUDNN_STATUS_CATEGORY((int)code);
        if (category != CUDNN_STATUS_NOT_SUPPORTED && category != CUDNN_STATUS_BAD_PARAM)
            return cudnn_failed(error, "cudnnConvolutionBiasActivationForward", code, call->in[0]);
        plan->fusion = (enum fusion)(plan->fusion + 1);
    }
    return forward_separate(cuda, plan, call, error);
}

enum status cuda_linear(struct backend *backend, struct op_call *call, struct error *error)
{
    return forward(backend, call, error);
}

enum status cuda_conv2d(struct backend *backend, struct op_call *call, struct error *error)
{
    return forward(backend, call, error);
}

/* ---- backward ---- */

static enum status backward_of(struct cuda *cuda, struct conv_plan *plan, struct op_call *call,
                               const void *dy, struct error *error)
{
    const struct tensor *x = call->in[0], *weight = call->in[1];
    if (call->din[0] != NULL) {
        TRY(cuda_output(call, call->din[0], error));
        TRY(choose_backward_data(cuda, plan, x, error));
        TRY(cuda_workspace(cuda, plan->data_bytes, error));
        CUDNN_TRY(x, cudnnConvolutionBackwardData, cuda->cudnn, &ONE, plan->weight, weight->data, plan->y, dy,
                  plan->convolution, plan->backward_data, cuda->workspace, plan->data_bytes, &ZERO, plan->x,
                  call->din[0]->data);
    }
    if (call->din[1] != NULL) {
        TRY(cuda_output(call, call->din[1], error));
        TRY(choose_backward_filter(cuda, plan, x, error));
        TRY(cuda_workspace(cuda, plan->filter_bytes, error));
        CUDNN_TRY(x, cudnnConvolutionBackwardFilter, cuda->cudnn, &ONE, plan->x, x->data, plan->y, dy,
                  plan->convolution, plan->backward_filter, cuda->workspace, plan->filter_bytes, &ZERO,
                  plan->weight, call->din[1]->data);
    }
    if (call->din[2] != NULL) {
        TRY(cuda_output(call, call->din[2], error));
        CUDNN_TRY(x, cudnnConvolutionBackwardBias, cuda->cudnn, &ONE, plan->y, dy, &ZERO, plan->bias,
                  call->din[2]->data);
    }
    return STATUS_OK;
}

static enum status backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *y = call->out[0];
    struct conv_plan *plan;
    void *dy = call->dout[0]->data;
    TRY(plan_of(cuda, call, &plan, error));
    if (!call->attributes.relu)
        return backward_of(cuda, plan, call, dy, error);
    TRY(cuda_scratch(call, cuda_elements(y) * sizeof(float), &dy, y, error));
    TRY(cuda_relu_backward(cuda, cuda_elements(y), cuda_floats(y), cuda_floats(call->dout[0]), (float *)dy, y,
                           error));
    TRY(backward_of(cuda, plan, call, dy, error));
    arena_release(call->arena, dy);
    return STATUS_OK;
}

enum status cuda_linear_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return backward(backend, call, error);
}

enum status cuda_conv2d_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return backward(backend, call, error);
}
