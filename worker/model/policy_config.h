/* What a policy is made of: an environment's spaces and a job's /policy. They say which network the policy
 * has, and the shape of that network. Pure functions; any thread. */
#ifndef WORKER_MODEL_POLICY_CONFIG_H
#define WORKER_MODEL_POLICY_CONFIG_H

#include "kernels/adam.h"
#include "kernels/base/status.h"
#include "kernels/policy/dense.h"
#include "kernels/policy/mlp.h"
#include "kernels/policy/recurrent.h"
#include "worker/environment/environment.h"

#include <stdbool.h>

enum {
    POLICY_LAYERS_MAX = 8,
    POLICY_CNN_SIZE_MIN = 36,  /* the height and width of the smallest image */
    POLICY_CNN_FEATURES = 512, /* units behind the convolutions */
    POLICY_PART_FEATURES =
        256,                  /* the same of an image among other parts: Stable-Baselines3's cnn_output_dim */
    POLICY_IMAGES_MAX = 8,    /* among the parts of an observation */
    POLICY_JOINED_MAX = 4096, /* features of all parts: the memory that joins them is quadratic */
};

enum policy_network_kind { POLICY_MLP, POLICY_CNN };
enum policy_activation { POLICY_RELU, POLICY_TANH };
enum policy_cell { POLICY_NO_MEMORY, POLICY_LSTM, POLICY_GRU };

/* What the value's layers read in a policy with memory. */
enum policy_critic {
    POLICY_CRITIC_OWN,      /* a memory of its own */
    POLICY_CRITIC_DETACHED, /* the policy's memory, which takes no gradient from the value */
    POLICY_CRITIC_LINEAR,   /* a linear layer in the place of a memory */
    POLICY_CRITIC_SHARED,   /* the policy's memory, which also takes the value's gradient */
};

/* What a policy learns from: rollouts of its own, or a replay buffer (policy.h). */
enum policy_learning { POLICY_ON_ROLLOUTS, POLICY_DQN, POLICY_SAC, POLICY_TD3 };

enum policy_noise { POLICY_NO_NOISE, POLICY_NORMAL_NOISE, POLICY_ORNSTEIN_UHLENBECK };

/* The bound of SAC's means with gSDE, on both sides of 0: Stable-Baselines3's clip_mean. */
#define POLICY_CLIP_MEAN 2.0F

/* Of a policy that learns from a replay buffer. */
struct policy_q_config {
    double gamma, tau;
    uint32_t batch_rows; /* of a gradient step, at most */
    /* DQN: */
    bool double_q, dueling;
    double max_norm; /* of the gradient; INFINITY: any */
    /* SAC and TD3: */
    uint32_t critics, critic_layers, critic_width[POLICY_LAYERS_MAX];
    enum policy_noise noise;
    double noise_std;
    /* SAC: the entropy's weight, which is learned, or stays; its target; targets follow after so many steps;
     * gSDE's other function of the deviations */
    bool learns_entropy;
    double entropy_coefficient, target_entropy;
    uint32_t target_interval;
    bool expln;
    /* TD3: */
    uint32_t policy_delay;
    double target_noise, target_noise_clip;
};

struct policy_config {
    enum policy_learning learning;
    struct policy_q_config q; /* unless POLICY_ON_ROLLOUTS */
    /* The environment's, which have passed environment_spec_check. Their arrays are copied where needed. */
    struct environment_space observation, action;
    /* What the observation is made of (environment.h); 0: it is one thing. They outlive the policy. */
    uint32_t part_count;
    const struct environment_part *parts;
    bool has_mask;
    enum policy_network_kind network;
    /* Hidden layers, and the units of each; of POLICY_MLP, and of joined parts. */
    uint32_t layers, width[POLICY_LAYERS_MAX];
    /* The same of the value network, has_value only; with shared_value they equal the policy's. */
    uint32_t value_layers, value_width[POLICY_LAYERS_MAX];
    enum policy_activation activation; /* of the hidden layers */
    /* The cell of recurrent layers between the observation, or the CNN, and the hidden layers and heads;
     * has_value only. The other three are for a policy with
     * memory: units of each layer, and layers. */
    enum policy_cell memory;
    uint32_t memory_units, memory_layers;
    enum policy_critic critic;
    double dropout; /* probability that a unit is dropped, 0 <= p < 1 */
    uint64_t seed;  /* of the first parameters and of every draw */
    struct adam_settings adam;
    bool has_value;    /* a value network: PPO's */
    bool shared_value; /* the value is one more output behind the policy's hidden layers, instead of a network
                          of its own; has_value only. With a memory POLICY_CRITIC_SHARED, or it is the CNN
                          alone that is shared; and so it is of joined parts */
    bool orthogonal;   /* the first weights are orthogonal, with gains sqrt(2) in hidden layers, 0.01 for the
                          policy's head and 1 for the value's, and the first biases 0; has_value only.
                          A memory begins uniform, but a shared one orthogonal with gain 1 */
    double log_std_init;  /* of every component of a Gaussian; has_value only */
    bool state_dependent; /* a Gaussian's deviations depend on the state: gSDE (kernels/policy/dense.h);
                             has_value only, and no choices */
    uint32_t noise_steps; /* state_dependent only: each environment's noise is drawn anew at each multiple of
                             so many steps of a rollout; 0: at its begin alone */
    bool normalizes;      /* float32 observations, or the floats among parts, by policy_normalize; has_value
                             only */
    double clip;          /* of what they become; normalizes only */
    uint32_t rows_max;    /* of a rollout */
    uint32_t
        minibatch_rows; /* of a step of policy_improve, at most, if rows_max is not less; has_value only */
    uint32_t threads; /* that learn on the CPU, at most; 0 is 1. The tutorial's network, and dense layers that
                         have values; any number gives the same bits */
    /* A backend's: */
    uint32_t environments; /* rows of the environments: a call of policy_act has at most one of each */
    bool one_size;         /* launches are all alike, each environment at its own place */
};

/* What a policy of this configuration computes on. */
enum policy_device {
    POLICY_ON_CPU,     /* the CPU without a backend; a GPU's backend where a job demands one */
    POLICY_ON_EITHER,  /* the CPU without a backend, or a GPU's backend if one works */
    POLICY_ON_BACKEND, /* a backend, of the CPU or of a GPU */
};
enum policy_device policy_device(const struct policy_config *config);

/* The network (worker/model/policy.h). Of the configuration as it is; policy_check says whether it can be. */
enum policy_form {
    POLICY_FORM_TUTORIAL,
    POLICY_FORM_DENSE,
    POLICY_FORM_CNN,
    POLICY_FORM_Q,     /* dense layers that learn from a replay buffer */
    POLICY_FORM_Q_CNN, /* DQN's CNN */
};
enum policy_form policy_form(const struct policy_config *config);

/* STATUS_INVALID names the key or the space that does not fit, and what was expected. */
enum status policy_check(const struct policy_config *config, struct error *error);

/* Whether the network reads the parts of an observation, images and floats, and joins their features: those
 * that a CNN finds in each image, and the floats themselves, in the order of the parts. */
static inline bool policy_joins_parts(const struct policy_config *config)
{
    return config->network == POLICY_CNN && config->part_count > 0;
}

/* Rows of a step of policy_improve, at most. */
static inline uint32_t policy_minibatch_rows(const struct policy_config *config)
{
    return config->minibatch_rows < config->rows_max ? config->minibatch_rows : config->rows_max;
}

/* Features that a part becomes: POLICY_PART_FEATURES of an image, else its elements. */
uint32_t policy_part_features(const struct environment_part *part);

/* Floats of what the memory reads, or without one the hidden layers and heads: the observation's, the CNN's,
 * or those of all parts. */
uint32_t policy_features(const struct policy_config *config);

/* Elements that policy_normalize scales: the observation's, or the floats among its parts. */
uint32_t policy_normalized(const struct policy_config *config);

/* Elements of one action. */
uint32_t policy_components(const struct policy_config *config);

/* Of the form's network, after policy_check. That of the CNN is its last layer's. */
struct mlp_shape policy_mlp_shape(const struct policy_config *config);
struct dense_shape policy_dense_shape(const struct policy_config *config);

/* The memories of a policy: the policy's own, number 0, and what the value has in the place of one, number 1.
 * How many there are: 0 without a memory, 1 where the value reads the policy's. */
uint32_t policy_memories(const struct policy_config *config);
struct recurrent_shape policy_memory_shape(const struct policy_config *config, uint32_t memory);

/* Floats of what the policy remembers of one environment: the states of its memories, one behind the other.
 * 0: it has no memory. */
size_t policy_config_state_floats(const struct policy_config *config);

#endif
