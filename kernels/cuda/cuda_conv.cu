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

enum pass { FORWARD, BACKWARD_DATA, BACKWARD_FILTER, PASSES };

/* How one of the three is computed. */
struct pass_choice {
    int algorithm; /* of cuDNN's enum for the pass */
    size_t bytes;  /* of workspace */
    bool ran;      /* it has run */
};

struct conv_plan {
    struct plan plan;
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t weight;
    cudnnConvolutionDescriptor_t convolution;
    struct pass_choice choice[PASSES];
    enum fusion fusion;
};

/* What a pass reads and writes. */
struct conv_data {
    const struct tensor *about;
    const void *x, *weight, *dy;
    void *y, *dx, *dweight;
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

static enum status describe_convolution(struct conv_plan *plan, const struct conv_sizes *s,
                                        const struct tensor *about, struct error *error)
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

/* ---- the passes: preferred algorithm, its workspace, what cuDNN proposes instead, the call ---- */

enum { PROPOSALS_MAX = 16 };

struct forward_pass {
    typedef cudnnConvolutionFwdAlgo_t algorithm;
    typedef cudnnConvolutionFwdAlgoPerf_t proposal;
    static const enum pass number = FORWARD;
    static const algorithm preferred = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;

    static const char *name(void)
    {
        return "cudnnConvolutionForward";
    }
    static cudnnStatus_t workspace(struct cuda *cuda, const struct conv_plan *plan, size_t *bytes)
    {
        return cudnnGetConvolutionForwardWorkspaceSize(cuda->cudnn, plan->x, plan->weight, plan->convolution,
                                                       plan->y, preferred, bytes);
    }
    static cudnnStatus_t propose(struct cuda *cuda, const struct conv_plan *plan, int *count,
                                 proposal *proposals)
    {
        return cudnnGetConvolutionForwardAlgorithm_v7(cuda->cudnn, plan->x, plan->weight, plan->convolution,
                                                      plan->y, PROPOSALS_MAX, count, proposals);
    }
    static cudnnStatus_t run(struct cuda *cuda, const struct conv_plan *plan,
                             const struct pass_choice *choice, const struct conv_data *d)
    {
        return cudnnConvolutionForward(cuda->cudnn, &ONE, plan->x, d->x, plan->weight, d->weight,
                                       plan->convolution, (algorithm)choice->algorithm, cuda->workspace,
                                       choice->bytes, &ZERO, plan->y, d->y);
    }
};

struct data_pass {
    typedef cudnnConvolutionBwdDataAlgo_t algorithm;
    typedef cudnnConvolutionBwdDataAlgoPerf_t proposal;
    static const enum pass number = BACKWARD_DATA;
    static const algorithm preferred = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;

    static const char *name(void)
    {
        return "cudnnConvolutionBackwardData";
    }
    static cudnnStatus_t workspace(struct cuda *cuda, const struct conv_plan *plan, size_t *bytes)
    {
        return cudnnGetConvolutionBackwardDataWorkspaceSize(cuda->cudnn, plan->weight, plan->y,
                                                            plan->convolution, plan->x, preferred, bytes);
    }
    static cudnnStatus_t propose(struct cuda *cuda, const struct conv_plan *plan, int *count,
                                 proposal *proposals)
    {
        return cudnnGetConvolutionBackwardDataAlgorithm_v7(
            cuda->cudnn, plan->weight, plan->y, plan->convolution, plan->x, PROPOSALS_MAX, count, proposals);
    }
    static cudnnStatus_t run(struct cuda *cuda, const struct conv_plan *plan,
                             const struct pass_choice *choice, const struct conv_data *d)
    {
        return cudnnConvolutionBackwardData(cuda->cudnn, &ONE, plan->weight, d->weight, plan->y, d->dy,
                                            plan->convolution, (algorithm)choice->algorithm, cuda->workspace,
                                            choice->bytes, &ZERO, plan->x, d->dx);
    }
};

struct filter_pass {
    typedef cudnnConvolutionBwdFilterAlgo_t algorithm;
    typedef cudnnConvolutionBwdFilterAlgoPerf_t proposal;
    static const enum pass number = BACKWARD_FILTER;
    static const algorithm preferred = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;

    static const char *name(void)
    {
        return "cudnnConvolutionBackwardFilter";
    }
    static cudnnStatus_t workspace(struct cuda *cuda, const struct conv_plan *plan, size_t *bytes)
    {
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(
            cuda->cudnn, plan->x, plan->y, plan->convolution, plan->weight, preferred, bytes);
    }
    static cudnnStatus_t propose(struct cuda *cuda, const struct conv_plan *plan, int *count,
                                 proposal *proposals)
    {
        return cudnnGetConvolutionBackwardFilterAlgorithm_v7(cuda->cudnn, plan->x, plan->y, plan->convolution,
                                                             plan->weight, PROPOSALS_MAX, count, proposals);
    }
    static cudnnStatus_t run(struct cuda *cuda, const struct conv_plan *plan,
                             const struct pass_choice *choice, const struct conv_data *d)
    {
        return cudnnConvolutionBackwardFilter(
            cuda->cudnn, &ONE, plan->x, d->x, plan->y, d->dy, plan->convolution, (algorithm)choice->algorithm,
            cuda->workspace, choice->bytes, &ZERO, plan->weight, d->dweight);
    }
};

static bool unsupported(cudnnStatus_t code)
{
    const int category = CUDNN_STATUS_CATEGORY((int)code);
    return category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM;
}

/* The preferred algorithm; else, or where that one has been tried already, the first other one that cuDNN
 * proposes which is deterministic and computes in plain float32. */
template <class Pass>
static enum status choose(struct cuda *cuda, struct conv_plan *plan, bool tried, const struct tensor *about,
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
                     "cuDNN has no deterministic float32 algorithm for %s on %.60s of %s", Pass::name(),
                     about->name != NULL ? about->name : "a tensor", shape_text(&about->shape, shape));
}

/* Where cuDNN finds out only in the call that it does not support its own choice, there is a second one. */
template <class Pass>
static enum status run(struct cuda *cuda, struct conv_plan *plan, const struct conv_data *data,
                       struct error *error)
{
    struct pass_choice *choice = &plan->choice[Pass::number];
    for (bool tried = false;; tried = true) {
        if (!choice->ran)
            TRY(choose<Pass>(cuda, plan, tried, data->about, error));
        TRY(cuda_workspace(cuda, choice->bytes, error));
        const cudnnStatus_t code = Pass::run(cuda, plan, choice, data);
        if (code == CUDNN_STATUS_SUCCESS) {
            choice->ran = true;
            return STATUS_OK;
        }
        if (choice->ran || tried || !unsupported(code))
            return cudnn_failed(error, Pass::name(), code, data->about);
    }
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
    enum status status = describe_convolution(*out, &s, call->in[0], error);
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

static enum status forward_separate(struct cuda *cuda, struct conv_plan *plan, const struct op_call *call,
                                    struct error *error)
{
    const struct tensor *y = call->out[0];
    const struct conv_sizes s = sizes_of(call);
    const size_t count = cuda_elements(y);
    struct conv_data data = {};
    data.about = call->in[0];
    data.x = call->in[0]->data;
    data.weight = call->in[1]->data;
    data.y = y->data;
    TRY(run<forward_pass>(cuda, plan, &data, error));
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
        forward_pass::preferred, cuda->workspace, plan->choice[FORWARD].bytes, &ZERO, plan->y, y->data,
        plan->bias, call->in[2]->data, activation, plan->y, y->data);
}

/* Sets plan->fusion to the first kind that works here, or is known to; STATUS_AGAIN: none does. */
static enum status try_fused(struct cuda *cuda, struct conv_plan *plan, const struct op_call *call,
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

static enum status forward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    struct conv_plan *plan;
    TRY(cuda_output(call, call->out[0], error));
    TRY(plan_of(cuda, call, &plan, error));
    const enum status status = try_fused(cuda, plan, call, error);
    return status == STATUS_AGAIN ? forward_separate(cuda, plan, call, error) : status;
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
    struct conv_data data = {};
    data.about = call->in[0];
    data.x = call->in[0]->data;
    data.weight = call->in[1]->data;
    data.dy = dy;
    if (call->din[0] != NULL) {
        TRY(cuda_output(call, call->din[0], error));
        data.dx = call->din[0]->data;
        TRY(run<data_pass>(cuda, plan, &data, error));
    }
    if (call->din[1] != NULL) {
        TRY(cuda_output(call, call->din[1], error));
        data.dweight = call->din[1]->data;
        TRY(run<filter_pass>(cuda, plan, &data, error));
    }
    if (call->din[2] != NULL) {
        TRY(cuda_output(call, call->din[2], error));
        CUDNN_TRY(data.about, cudnnConvolutionBackwardBias, cuda->cudnn, &ONE, plan->y, dy, &ZERO, plan->bias,
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
