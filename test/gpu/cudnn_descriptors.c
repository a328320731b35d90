/* The stand-in's descriptors: create, set, read, destroy. */
#include "test/gpu/cudnn_stand_in.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- what all descriptors have ---- */

enum descriptor_kind {
    TENSOR = 0x7e500001,
    FILTER,
    CONVOLUTION,
    POOLING,
    ACTIVATION,
    DROPOUT,
    RNN,
    RNN_DATA,
};

struct descriptor {
    enum descriptor_kind kind; /* 0: destroyed */
    bool set;
};

struct cudnnTensorStruct {
    struct descriptor base;
    struct cudnn_tensor value;
};

struct cudnnFilterStruct {
    struct descriptor base;
    struct cudnn_filter value;
};

struct cudnnConvolutionStruct {
    struct descriptor base;
    struct cudnn_convolution value;
};

struct cudnnPoolingStruct {
    struct descriptor base;
    struct cudnn_pooling value;
};

struct cudnnActivationStruct {
    struct descriptor base;
    struct cudnn_activation value;
};

struct cudnnDropoutStruct {
    struct descriptor base;
    float probability;
};

struct cudnnRNNStruct {
    struct descriptor base;
    struct cudnn_rnn value;
};

struct cudnnRNNDataStruct {
    struct descriptor base;
    struct cudnn_sequences value;
};

static const char *kind_name(enum descriptor_kind kind)
{
    static const char *const names[] = {"cudnnTensorDescriptor_t",      "cudnnFilterDescriptor_t",
                                        "cudnnConvolutionDescriptor_t", "cudnnPoolingDescriptor_t",
                                        "cudnnActivationDescriptor_t",  "cudnnDropoutDescriptor_t",
                                        "cudnnRNNDescriptor_t",         "cudnnRNNDataDescriptor_t"};
    return names[kind - TENSOR];
}

static cudnnStatus_t descriptor_create(const char *function, enum descriptor_kind kind, size_t bytes,
                                       const void *result, struct descriptor **out)
{
    if (result == NULL)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, function, "the result's pointer is NULL");
    *out = calloc(1, bytes);
    if (*out == NULL)
        return cudnn_refusal(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, function, "no memory");
    (*out)->kind = kind;
    gpu_alive(kind_name(kind), 1);
    return CUDNN_STATUS_SUCCESS;
}

/* Checks a descriptor that a call sets or destroys. */
static cudnnStatus_t descriptor_check(const char *function, const char *name,
                                      const struct descriptor *descriptor, enum descriptor_kind kind)
{
    if (descriptor == NULL)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, function, "%s is NULL", name);
    if (descriptor->kind != kind)
        gpu_misuse("%s: %s is no %s, or was destroyed", function, name, kind_name(kind));
    return CUDNN_STATUS_SUCCESS;
}

/* Checks a descriptor that a call reads. */
static cudnnStatus_t descriptor_read(const char *function, const char *name,
                                     const struct descriptor *descriptor, enum descriptor_kind kind)
{
    TRY(descriptor_check(function, name, descriptor, kind));
    if (!descriptor->set)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, function, "%s was never set", name);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t descriptor_destroy(const char *function, struct descriptor *descriptor,
                                        enum descriptor_kind kind)
{
    TRY(descriptor_check(function, "the descriptor", descriptor, kind));
    memset(descriptor, 0, sizeof *descriptor);
    free(descriptor);
    gpu_alive(kind_name(kind), -1);
    return CUDNN_STATUS_SUCCESS;
}

/* cudnnCreate...Descriptor and cudnnDestroy...Descriptor of one type. */
#define CREATE_AND_DESTROY(Type, kind)                                                                       \
    cudnnStatus_t cudnnCreate##Type##Descriptor(cudnn##Type##Descriptor_t *out)                              \
    {                                                                                                        \
        ENTER();                                                                                             \
        struct descriptor *made;                                                                             \
        TRY(descriptor_create(__func__, kind, sizeof(struct cudnn##Type##Struct), out, &made));              \
        *out = (cudnn##Type##Descriptor_t)made;                                                              \
        return CUDNN_STATUS_SUCCESS;                                                                         \
    }                                                                                                        \
    cudnnStatus_t cudnnDestroy##Type##Descriptor(cudnn##Type##Descriptor_t descriptor)                       \
    {                                                                                                        \
        ENTER_FREEING();                                                                                     \
        TRY(descriptor_destroy(__func__, (struct descriptor *)descriptor, kind));                            \
        return LEAVE();                                                                                      \
    }
CREATE_AND_DESTROY(Tensor, TENSOR)
CREATE_AND_DESTROY(Filter, FILTER)
CREATE_AND_DESTROY(Convolution, CONVOLUTION)
CREATE_AND_DESTROY(Pooling, POOLING)
CREATE_AND_DESTROY(Activation, ACTIVATION)
CREATE_AND_DESTROY(Dropout, DROPOUT)
CREATE_AND_DESTROY(RNN, RNN)
CREATE_AND_DESTROY(RNNData, RNN_DATA)

/* cudnn_..._of of one type. */
#define VALUE_OF(Type, type, kind, name)                                                                     \
    cudnnStatus_t cudnn_##type##_of(const char *function, cudnn##Type##Descriptor_t descriptor,              \
                                    struct cudnn_##type *out)                                                \
    {                                                                                                        \
        TRY(descriptor_read(function, name, (const struct descriptor *)descriptor, kind));                   \
        *out = descriptor->value;                                                                            \
        return CUDNN_STATUS_SUCCESS;                                                                         \
    }
VALUE_OF(Filter, filter, FILTER, "the filter's descriptor")
VALUE_OF(Convolution, convolution, CONVOLUTION, "convDesc")
VALUE_OF(Pooling, pooling, POOLING, "poolingDesc")
VALUE_OF(Activation, activation, ACTIVATION, "activationDesc")
VALUE_OF(RNN, rnn, RNN, "rnnDesc")

/* ---- checks of numbers ---- */

/* Every size is at least 1, and their product is at most 2^31 - 1 (cuDNN: 2 giga-elements). */
static cudnnStatus_t check_sizes(const char *function, const int *size, int rank)
{
    int64_t elements = 1;
    for (int i = 0; i < rank; i++) {
        if (size[i] <= 0)
            return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "size %d is %d, expected at least 1", i,
                                 size[i]);
        elements *= size[i];
        if (elements > INT_MAX)
            return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED, function, "more than 2^31 - 1 elements");
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_at_least(const char *function, const char *name, const int value[2], int least)
{
    for (int i = 0; i < 2; i++)
        if (value[i] < least)
            return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "%s %d is %d, expected at least %d", name,
                                 i, value[i], least);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_enum(const char *function, const char *name, int value, int last)
{
    if (value < 0 || value > last)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "%s %d does not exist", name, value);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_type(const char *function, cudnnDataType_t type)
{
    return check_enum(function, "data type", (int)type, CUDNN_DATA_COMPLEX_FP64);
}

/* ---- tensors ---- */

static void tensor_set_packed(struct cudnn_tensor *value, cudnnDataType_t type, int rank, const int *size)
{
    *value = (struct cudnn_tensor){.type = type, .rank = rank};
    for (int i = rank, stride = 1; i-- > 0; stride *= size[i]) {
        value->size[i] = size[i];
        value->stride[i] = stride;
    }
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensorDesc, cudnnTensorFormat_t format,
                                         cudnnDataType_t dataType, int n, int c, int h, int w)
{
    ENTER();
    const int size[4] = {n, c, h, w};
    TRY(descriptor_check(__func__, "tensorDesc", (const struct descriptor *)tensorDesc, TENSOR));
    TRY(check_type(__func__, dataType));
    TRY(check_enum(__func__, "format", (int)format, CUDNN_TENSOR_NCHW_VECT_C));
    TRY(check_sizes(__func__, size, 4));
    REQUIRE(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, format != CUDNN_TENSOR_NCHW_VECT_C,
            "the stand-in has no vectors of channels");
    tensor_set_packed(&tensorDesc->value, dataType, 4, size);
    if (format == CUDNN_TENSOR_NHWC)
        memcpy(tensorDesc->value.stride, (const int[4]){h * w * c, 1, w * c, c}, 4 * sizeof(int));
    tensorDesc->base.set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensorDesc, cudnnDataType_t dataType,
                                         int nbDims, const int dimA[], const int strideA[])
{
    ENTER();
    TRY(descriptor_check(__func__, "tensorDesc", (const struct descriptor *)tensorDesc, TENSOR));
    REQUIRE_POINTER(dimA);
    REQUIRE_POINTER(strideA);
    REQUIRE(CUDNN_STATUS_NOT_SUPPORTED, nbDims >= 3 && nbDims <= CUDNN_DIM_MAX,
            "%d dimensions, expected 3 to %d", nbDims, CUDNN_DIM_MAX);
    TRY(check_type(__func__, dataType));
    TRY(check_sizes(__func__, dimA, nbDims));
    for (int i = 0; i < nbDims; i++)
        REQUIRE(CUDNN_STATUS_BAD_PARAM, strideA[i] > 0, "stride %d is %d, expected at least 1", i,
                strideA[i]);
    tensorDesc->value = (struct cudnn_tensor){.type = dataType, .rank = nbDims};
    memcpy(tensorDesc->value.size, dimA, (size_t)nbDims * sizeof *dimA);
    memcpy(tensorDesc->value.stride, strideA, (size_t)nbDims * sizeof *strideA);
    tensorDesc->base.set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t tensorDesc, int nbDimsRequested,
                                         cudnnDataType_t *dataType, int *nbDims, int dimA[], int strideA[])
{
    ENTER();
    struct cudnn_tensor value;
    TRY(cudnn_tensor_of(__func__, "tensorDesc", tensorDesc, &value));
    REQUIRE_POINTER(dataType);
    REQUIRE_POINTER(nbDims);
    REQUIRE(CUDNN_STATUS_BAD_PARAM, nbDimsRequested > 0 && nbDimsRequested <= CUDNN_DIM_MAX,
            "%d dimensions requested, expected 1 to %d", nbDimsRequested, CUDNN_DIM_MAX);
    *dataType = value.type;
    *nbDims = value.rank;
    for (int i = 0; i < value.rank && i < nbDimsRequested; i++) {
        dimA[i] = value.size[i];
        strideA[i] = value.stride[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnn_describe3(const char *function, const char *name, cudnnTensorDescriptor_t descriptor,
                              int a, int b, int c)
{
    TRY(descriptor_check(function, name, (const struct descriptor *)descriptor, TENSOR));
    tensor_set_packed(&descriptor->value, CUDNN_DATA_FLOAT, 3, (const int[3]){a, b, c});
    descriptor->base.set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnn_tensor_of(const char *function, const char *name, cudnnTensorDescriptor_t descriptor,
                              struct cudnn_tensor *out)
{
    TRY(descriptor_read(function, name, (const struct descriptor *)descriptor, TENSOR));
    *out = descriptor->value;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnn_images_of(const char *function, const char *name, cudnnTensorDescriptor_t descriptor,
                              struct cudnn_tensor *out)
{
    struct cudnn_tensor packed;
    TRY(cudnn_tensor_of(function, name, descriptor, out));
    if (out->rank != 4)
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, function, "%s has %d dimensions, expected 4",
                             name, out->rank);
    if (out->type != CUDNN_DATA_FLOAT)
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, function,
                             "%s has data type %d, the stand-in has floats only", name, (int)out->type);
    tensor_set_packed(&packed, out->type, out->rank, out->size);
    if (memcmp(packed.stride, out->stride, sizeof packed.stride) != 0)
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, function, "%s is not packed NCHW", name);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnn_same_sizes(const char *function, const char *name_a, const struct cudnn_tensor *a,
                               const char *name_b, const struct cudnn_tensor *b)
{
    if (a->rank == b->rank && memcmp(a->size, b->size, sizeof a->size) == 0)
        return CUDNN_STATUS_SUCCESS;
    return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, function,
                         "%s has sizes (%d, %d, %d, %d), and %s (%d, %d, %d, %d)", name_a, a->size[0],
                         a->size[1], a->size[2], a->size[3], name_b, b->size[0], b->size[1], b->size[2],
                         b->size[3]);
}

size_t cudnn_elements(const struct cudnn_tensor *tensor)
{
    size_t elements = 1;
    for (int i = 0; i < tensor->rank; i++)
        elements *= (size_t)tensor->size[i];
    return elements;
}

/* ---- filters, convolutions, pools, activations ---- */

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filterDesc, cudnnDataType_t dataType,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w)
{
    ENTER();
    const int size[4] = {k, c, h, w};
    TRY(descriptor_check(__func__, "filterDesc", (const struct descriptor *)filterDesc, FILTER));
    TRY(check_type(__func__, dataType));
    TRY(check_enum(__func__, "format", (int)format, CUDNN_TENSOR_NCHW_VECT_C));
    TRY(check_sizes(__func__, size, 4));
    filterDesc->value = (struct cudnn_filter){dataType, format, {k, c, h, w}};
    filterDesc->base.set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convDesc, int pad_h, int pad_w,
                                              int u, int v, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t computeType)
{
    ENTER();
    const struct cudnn_convolution value = {.padding = {pad_h, pad_w},
                                            .stride = {u, v},
                                            .dilation = {dilation_h, dilation_w},
                                            .mode = mode,
                                            .type = computeType,
                                            .math = CUDNN_DEFAULT_MATH};
    TRY(descriptor_check(__func__, "convDesc", (const struct descriptor *)convDesc, CONVOLUTION));
    TRY(check_at_least(__func__, "padding", value.padding, 0));
    TRY(check_at_least(__func__, "stride", value.stride, 1));
    TRY(check_at_least(__func__, "dilation", value.dilation, 1));
    TRY(check_enum(__func__, "mode", (int)mode, CUDNN_CROSS_CORRELATION));
    TRY(check_type(__func__, computeType));
    convDesc->value = value;
    convDesc->base.set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convDesc, cudnnMathType_t mathType)
{
    ENTER();
    TRY(descriptor_read(__func__, "convDesc", (const struct descriptor *)convDesc, CONVOLUTION));
    TRY(check_enum(__func__, "math type", (int)mathType, CUDNN_FMA_MATH));
    convDesc->value.math = mathType;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t poolingDesc, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t maxpoolingNanOpt, int windowHeight,
                                          int windowWidth, int verticalPadding, int horizontalPadding,
                                          int verticalStride, int horizontalStride)
{
    ENTER();
    const struct cudnn_pooling value = {.mode = mode,
                                        .nan = maxpoolingNanOpt,
                                        .window = {windowHeight, windowWidth},
                                        .padding = {verticalPadding, horizontalPadding},
                                        .stride = {verticalStride, horizontalStride}};
    TRY(descriptor_check(__func__, "poolingDesc", (const struct descriptor *)poolingDesc, POOLING));
    TRY(check_enum(__func__, "mode", (int)mode, CUDNN_POOLING_MAX_DETERMINISTIC));
    TRY(check_enum(__func__, "NaN propagation", (int)maxpoolingNanOpt, CUDNN_PROPAGATE_NAN));
    TRY(check_at_least(__func__, "window", value.window, 1));
    TRY(check_at_least(__func__, "padding", value.padding, 0));
    TRY(check_at_least(__func__, "stride", value.stride, 1));
    for (int i = 0; i < 2; i++)
        REQUIRE(CUDNN_STATUS_BAD_PARAM, value.padding[i] < value.window[i],
                "padding %d is %d, expected less than the window's %d", i, value.padding[i], value.window[i]);
    poolingDesc->value = value;
    poolingDesc->base.set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t activationDesc,
                                           cudnnActivationMode_t mode, cudnnNanPropagation_t reluNanOpt,
                                           double coef)
{
    ENTER();
    TRY(descriptor_check(__func__, "activationDesc", (const struct descriptor *)activationDesc, ACTIVATION));
    TRY(check_enum(__func__, "mode", (int)mode, CUDNN_ACTIVATION_SWISH));
    TRY(check_enum(__func__, "NaN propagation", (int)reluNanOpt, CUDNN_PROPAGATE_NAN));
    activationDesc->value = (struct cudnn_activation){mode, reluNanOpt, coef};
    activationDesc->base.set = true;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- dropout and RNNs ---- */

/* A dropout of 0 needs no states. */
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t dropoutDesc, cudnnHandle_t handle,
                                        float dropout, void *states, size_t stateSizeInBytes,
                                        unsigned long long seed)
{
    ENTER();
    (void)stateSizeInBytes;
    (void)seed;
    TRY(descriptor_check(__func__, "dropoutDesc", (const struct descriptor *)dropoutDesc, DROPOUT));
    REQUIRE_POINTER(handle);
    REQUIRE(CUDNN_STATUS_BAD_PARAM, dropout >= 0 && dropout < 1, "dropout is %g, expected 0 to less than 1",
            (double)dropout);
    REQUIRE(CUDNN_STATUS_NOT_SUPPORTED, dropout == 0 && states == NULL, "the stand-in draws nothing");
    dropoutDesc->probability = dropout;
    dropoutDesc->base.set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnnDesc, cudnnRNNAlgo_t algo,
                                       cudnnRNNMode_t cellMode, cudnnRNNBiasMode_t biasMode,
                                       cudnnDirectionMode_t dirMode, cudnnRNNInputMode_t inputMode,
                                       cudnnDataType_t dataType, cudnnDataType_t mathPrec,
                                       cudnnMathType_t mathType, int32_t inputSize, int32_t hiddenSize,
                                       int32_t projSize, int32_t numLayers,
                                       cudnnDropoutDescriptor_t dropoutDesc, uint32_t auxFlags)
{
    ENTER();
    TRY(descriptor_check(__func__, "rnnDesc", (const struct descriptor *)rnnDesc, RNN));
    TRY(check_enum(__func__, "algorithm", (int)algo, CUDNN_RNN_ALGO_COUNT - 1));
    TRY(check_enum(__func__, "cell mode", (int)cellMode, CUDNN_GRU));
    TRY(check_enum(__func__, "bias mode", (int)biasMode, CUDNN_RNN_SINGLE_REC_BIAS));
    TRY(check_enum(__func__, "direction", (int)dirMode, CUDNN_BIDIRECTIONAL));
    TRY(check_enum(__func__, "input mode", (int)inputMode, CUDNN_SKIP_INPUT));
    TRY(check_enum(__func__, "math type", (int)mathType, CUDNN_FMA_MATH));
    TRY(check_type(__func__, dataType));
    TRY(check_type(__func__, mathPrec));
    REQUIRE(CUDNN_STATUS_BAD_PARAM, inputSize > 0, "the input size is %d, expected at least 1", inputSize);
    REQUIRE(CUDNN_STATUS_BAD_PARAM, hiddenSize > 0, "the hidden size is %d, expected at least 1", hiddenSize);
    REQUIRE(CUDNN_STATUS_BAD_PARAM, numLayers > 0, "%d layers, expected at least 1", numLayers);
    REQUIRE(CUDNN_STATUS_BAD_PARAM, projSize > 0 && projSize <= hiddenSize,
            "the projection's size is %d, expected 1 to the hidden size, %d", projSize, hiddenSize);
    REQUIRE(CUDNN_STATUS_BAD_PARAM, (auxFlags & ~CUDNN_RNN_PADDED_IO_ENABLED) == 0, "unknown flags %#x",
            auxFlags);
    if (dropoutDesc != NULL)
        TRY(descriptor_read(__func__, "dropoutDesc", (const struct descriptor *)dropoutDesc, DROPOUT));
    REQUIRE(CUDNN_STATUS_NOT_SUPPORTED,
            algo == CUDNN_RNN_ALGO_STANDARD && (cellMode == CUDNN_LSTM || cellMode == CUDNN_GRU) &&
                biasMode == CUDNN_RNN_DOUBLE_BIAS && dirMode == CUDNN_UNIDIRECTIONAL &&
                inputMode == CUDNN_LINEAR_INPUT && projSize == hiddenSize && numLayers == 1 &&
                auxFlags == CUDNN_RNN_PADDED_IO_DISABLED,
            "the stand-in has one layer of an LSTM or a GRU by the standard algorithm, with two biases");
    REQUIRE(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
            dataType == CUDNN_DATA_FLOAT && mathPrec == CUDNN_DATA_FLOAT, "the stand-in has floats only");
    rnnDesc->value = (struct cudnn_rnn){mathType, inputSize, hiddenSize, cellMode == CUDNN_LSTM ? 4 : 3};
    rnnDesc->base.set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t rnnDataDesc, cudnnDataType_t dataType,
                                        cudnnRNNDataLayout_t layout, int maxSeqLength, int batchSize,
                                        int vectorSize, const int seqLengthArray[], void *paddingFill)
{
    ENTER();
    (void)paddingFill;
    TRY(descriptor_check(__func__, "rnnDataDesc", (const struct descriptor *)rnnDataDesc, RNN_DATA));
    TRY(check_type(__func__, dataType));
    TRY(check_enum(__func__, "layout", (int)layout, CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED));
    TRY(check_sizes(__func__, (const int[3]){maxSeqLength, batchSize, vectorSize}, 3));
    REQUIRE_POINTER(seqLengthArray);
    for (int i = 0; i < batchSize; i++)
        REQUIRE(CUDNN_STATUS_BAD_PARAM, seqLengthArray[i] > 0 && seqLengthArray[i] <= maxSeqLength,
                "sequence %d has %d steps, expected 1 to %d", i, seqLengthArray[i], maxSeqLength);
    REQUIRE(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
            "the stand-in has packed sequences only");
    REQUIRE(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, dataType == CUDNN_DATA_FLOAT,
            "the stand-in has floats only");
    for (int i = 0; i < batchSize; i++)
        REQUIRE(CUDNN_STATUS_NOT_SUPPORTED, seqLengthArray[i] == maxSeqLength,
                "the stand-in has sequences of one length");
    rnnDataDesc->value = (struct cudnn_sequences){maxSeqLength, batchSize, vectorSize};
    rnnDataDesc->base.set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnn_sequences_of(const char *function, const char *name, cudnnRNNDataDescriptor_t descriptor,
                                 struct cudnn_sequences *out)
{
    TRY(descriptor_read(function, name, (const struct descriptor *)descriptor, RNN_DATA));
    *out = descriptor->value;
    return CUDNN_STATUS_SUCCESS;
}
