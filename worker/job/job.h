/* The room worker/job: a job as the user describes it, checked and complete.
 *
 * JSON text is a job's only form outside of memory: the file that a person edits, job.json in the run
 * directory, and the text that the supervisor and WELCOME hand to every worker. This header turns such text
 * into a struct job and back. One table (job_table.h) holds the keys and the rules between them; the check,
 * the JSON schema and the manual are made from it. Nothing here blocks but job_read_file, which reads a file.
 * Every function may be called from any thread.
 *
 *     key        a place in the job file, named by its JSON pointer; a row of the table for each set of kinds
 *     kind       reinforce, parameter-server or model-parallel; decides which keys a job has
 *     variant    a kind, or the kind reinforce with the algorithm ppo or a2c
 *     group      a key whose value is an object; its members are keys
 *     override   a `--set` argument, which replaces one value before the check
 *     rule       what the values of two or three keys must be together
 *     limit      a bound on the product of several keys
 *     problem    one line about what is wrong, with its place in the file
 *
 * The room includes kernels/base, the names of worker/environment, and the wire's limits. The supervisor and
 * every room whose code depends on the job include this header. */
#ifndef WORKER_JOB_JOB_H
#define WORKER_JOB_JOB_H

#include "kernels/base/file.h"
#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum job_kind { JOB_REINFORCE, JOB_PARAMETER_SERVER, JOB_MODEL_PARALLEL };
enum job_algorithm {
    JOB_ALGORITHM_REINFORCE,
    JOB_ALGORITHM_PPO,
    JOB_ALGORITHM_A2C,
    JOB_ALGORITHM_DQN,
    JOB_ALGORITHM_SAC,
    JOB_ALGORITHM_TD3,
};
enum job_device { JOB_DEVICE_AUTO, JOB_DEVICE_CPU, JOB_DEVICE_GPU };
enum job_rollout { JOB_ROLLOUT_STEPS, JOB_ROLLOUT_EPISODE };
enum job_begin { JOB_BEGIN_RESET, JOB_BEGIN_CONTINUE };
enum job_coalesce { JOB_COALESCE_OFF, JOB_COALESCE_BARRIER, JOB_COALESCE_DYNAMIC };
enum job_network { JOB_NETWORK_MLP, JOB_NETWORK_CNN };
enum job_activation { JOB_ACTIVATION_RELU, JOB_ACTIVATION_TANH };
enum job_value_network { JOB_VALUE_NETWORK_SEPARATE, JOB_VALUE_NETWORK_SHARED };
enum job_recurrent { JOB_RECURRENT_LSTM, JOB_RECURRENT_GRU };
enum job_sequences { JOB_SEQUENCES_WHOLE, JOB_SEQUENCES_PADDED };
enum job_noise { JOB_NOISE_NORMAL, JOB_NOISE_ORNSTEIN_UHLENBECK };
enum job_reduction { JOB_REDUCTION_SUM, JOB_REDUCTION_MEAN_OVER_ENVIRONMENTS };
enum job_of { JOB_OF_MIN, JOB_OF_MEAN };
enum job_transport { JOB_TRANSPORT_SHARED, JOB_TRANSPORT_INLINE };
enum job_precision { JOB_PRECISION_FLOAT32, JOB_PRECISION_BFLOAT16 };
enum job_model { JOB_MODEL_RESNET18, JOB_MODEL_RESNET50 };
enum job_loss { JOB_LOSS_MSE, JOB_LOSS_CROSS_ENTROPY };
enum job_value_loss { JOB_VALUE_LOSS_MSE, JOB_VALUE_LOSS_HALF_MSE };
enum job_kl_check { JOB_KL_MINIBATCH, JOB_KL_EPOCH };
enum job_schedule { JOB_SCHEDULE_CONSTANT, JOB_SCHEDULE_LINEAR, JOB_SCHEDULE_PLATEAU };
enum job_layer { JOB_LAYER_EMBEDDING, JOB_LAYER_LSTM, JOB_LAYER_DECODER, JOB_LAYERS };
enum job_classes { JOB_CLASSES_TOKENS, JOB_CLASSES_BATCH };
enum job_round { JOB_ROUND_ALL, JOB_ROUND_FIRST, JOB_ROUND_ASYNC };
enum job_where { JOB_ON_TRAINER, JOB_ON_SERVER };
enum job_spread { JOB_SPREAD_EVEN, JOB_SPREAD_OTHERS };
enum job_servers_at { JOB_SERVERS_LEADER, JOB_SERVERS_EVEN };
enum { JOB_LISTEN_BYTES = 64 };
enum job_data {
    JOB_DATA_SYNTHETIC,
    JOB_DATA_IDX,
    JOB_DATA_CIFAR,
    JOB_DATA_FOLDER,
    JOB_DATA_TEXT,
    JOB_DATA_CLASS /* trainers.class has the samples */
};
enum job_fit { JOB_FIT_PAD, JOB_FIT_RESIZE };

enum {
    JOB_NAME_BYTES = 64,            /* with the terminating zero */
    JOB_TEXT_BYTES_MAX = 1 << 20,   /* a longer job file is refused unread */
    JOB_ROLLOUT_ROWS_MAX = 1 << 24, /* environments * rollout.steps: what an agent keeps of an episode */
    JOB_ENVIRONMENTS_MAX = 16384,   /* observers.count * observers.environments */
    JOB_FRAMES_MAX = 16,            /* environment.frames */
    JOB_TRAINERS_MAX = 256,
    JOB_SERVERS_MAX = 16,
    JOB_PATH_BYTES = 1024,            /* with the terminating zero */
    JOB_ENVIRONMENT_NAME_BYTES = 128, /* with the terminating zero */
    JOB_OPTIONS_BYTES = 2048,         /* likewise */
    JOB_CHANNELS_MAX = 3,             /* of images */
    JOB_WIDTHS_MAX = 8,               /* POLICY_LAYERS_MAX */
    JOB_CRITICS_MAX = 8,              /* algorithm.n_critics */
    JOB_OVERLAP_MAX = 8,              /* algorithm.overlap, of a replay buffer */
    JOB_REPLAY_BATCH_MAX = 65536,     /* algorithm.batch_size of a replay buffer */
    JOB_REPLAY_ROWS_MAX = 1 << 30,    /* algorithm.buffer_size */
    JOB_TOKENS_MAX = 1 << 20,         /* VOCABULARY_WORDS_MAX */
    JOB_LSTM_LAYERS_MAX = 8,          /* RNN_LAYERS_MAX */
    JOB_UPDATE_SAMPLES_MAX = 1 << 20, /* trainers.count * trainers.batch */
    JOB_BATCH_VALUES_MAX = 1 << 30,   /* trainers.batch or evaluation.batch * channels * size * size */
};

/* One value for each channel of an image, or one for all channels. */
struct job_channels {
    uint32_t count; /* 1 or 3 */
    double value[JOB_CHANNELS_MAX];
};

/* The widths of a network's hidden layers. */
struct job_widths {
    uint32_t count;
    uint32_t value[JOB_WIDTHS_MAX];
};

/* A number, or one that is found: "auto", or "auto_NUMBER" that says where to begin. */
struct job_auto {
    bool automatic;
    double number; /* of "auto": 1 */
};

/* How often: every `count` steps, or episodes. */
struct job_frequency {
    uint32_t count;
    bool episodes;
};

/* A name, and the number behind it: "all", "first K" or "async S" in JSON; "trainer" or "server K". */
struct job_numbered {
    int name;        /* enum job_round, enum job_where */
    uint32_t number; /* all, trainer: 0 */
};

/* The table (job_keys.c) says which keys a kind has, and explains them. Members of other kinds are zero. */
struct job {
    int kind; /* enum job_kind; enums are stored as int so that one table can fill them */
    char name[JOB_NAME_BYTES];
    uint64_t seed;
    int device;
    struct {
        uint32_t count;        /* processes */
        uint32_t environments; /* per process */
        uint32_t groups;       /* of these; each asks for actions by itself */
    } observers;
    struct { /* at most one of has_plugin, has_gymnasium, has_class, has_pettingzoo */
        bool has_name, has_plugin, has_gymnasium, has_class, has_pettingzoo;
        bool renew, atari, clip_reward;
        char name[JOB_ENVIRONMENT_NAME_BYTES];       /* a built-in one, or the plug-in's; null: its first */
        char plugin[JOB_PATH_BYTES];                 /* a shared object (worker/environment/environment.h) */
        char gymnasium[JOB_ENVIRONMENT_NAME_BYTES];  /* an id of Gymnasium's registry */
        char class[JOB_ENVIRONMENT_NAME_BYTES];      /* "module:Class" */
        char pettingzoo[JOB_ENVIRONMENT_NAME_BYTES]; /* "module:function" */
        char python[JOB_PATH_BYTES];                 /* the interpreter */
        char options[JOB_OPTIONS_BYTES];             /* a JSON object */
        uint32_t frames;                             /* observations in one */
    } environment;
    struct {
        int mode;       /* `steps`: a fixed number with reset on done; `episode`: until done */
        uint32_t steps; /* in mode `steps` */
        int begin;      /* enum job_begin: how an episode of the job begins */
    } rollout;
    struct { /* of reinforce: the name alone. n_steps, gamma, learning_rate and adam_epsilon of the others are
                members of rollout, returns and optimizer; the names are Stable-Baselines3's */
        int name;            /* enum job_algorithm */
        uint32_t batch_size; /* rows of a minibatch */
        uint32_t n_epochs;
        double gae_lambda;
        int learning_rate_schedule, clip_range_schedule; /* enum job_schedule: constant or linear */
        double clip_range;
        bool has_clip_range_vf, has_max_grad_norm, has_target_kl; /* false: null */
        double clip_range_vf;
        bool normalize_advantage;
        double ent_coef, vf_coef;
        int value_loss; /* enum job_value_loss */
        double max_grad_norm;
        double target_kl;
        int target_kl_at; /* enum job_kl_check */
        bool bootstrap_truncated;
        bool has_sequences;
        int sequences; /* enum job_sequences; of policies with memory, see job_pads_sequences */
        bool use_sde, has_sde_sample_freq;
        uint32_t sde_sample_freq;   /* steps */
        uint32_t stats_window_size; /* episodes */
        bool use_rms_prop;          /* a2c */
        double rms_prop_eps;
        uint32_t overlap; /* 0: acting waits for learning. Off-policy: trainings; ppo, a2c: updates */
    } algorithm;
    struct { /* dqn, sac, td3: /replay/save, and keys of /algorithm */
        bool save;
        uint32_t rows; /* buffer_size */
        uint64_t learning_starts;
        struct job_frequency train_freq;
        int32_t gradient_steps; /* -1: as many as steps of environments */
        double tau;
        uint32_t target_update_interval; /* dqn: steps; sac: gradient steps */
        double exploration_fraction, exploration_initial_eps, exploration_final_eps; /* dqn */
        bool double_q, prioritized;                                                  /* dqn */
        double alpha, beta;                                                          /* dqn, if prioritized */
        struct job_auto ent_coef, target_entropy;                                    /* sac */
        uint32_t n_critics;                                                          /* sac, td3 */
        bool use_expln;                                                              /* sac */
        uint32_t policy_delay;                                                       /* td3 */
        double target_policy_noise, target_noise_clip;                               /* td3 */
        bool has_noise_type;                                                         /* sac, td3 */
        int noise_type;                                                              /* enum job_noise */
        double noise_std;
    } replay;
    struct { /* ppo, a2c: as Stable-Baselines3's VecNormalize */
        bool observations, rewards;
        double clip_observations, clip_rewards;
    } normalize;
    struct {
        int mode;
        uint32_t max_batch;    /* rows; `dynamic` only */
        uint64_t max_delay_us; /* microseconds; `dynamic` only */
    } coalesce;
    struct {
        int network;                 /* enum job_network */
        struct job_widths hidden[2]; /* mlp: of the policy, and of the value or the critics; in JSON one
                                        number, a list, or an object of two such */
        bool dueling;                /* dqn */
        int activation;              /* enum job_activation; mlp */
        bool has_value_network; /* false: null in JSON, the network's own (see worker/reinforce/job_open.c) */
        int value_network;      /* enum job_value_network; ppo, a2c */
        bool has_recurrent; /* false: null in JSON; the policy has no memory. ppo, a2c, like the next five */
        int recurrent;      /* enum job_recurrent */
        uint32_t lstm_hidden_size, n_lstm_layers;
        bool shared_lstm, enable_critic_lstm;
        bool has_dropout;    /* false: null in JSON, the network's own (see worker/reinforce/job_open.h) */
        double dropout;      /* probability that a unit is dropped */
        bool ortho_init;     /* ppo, a2c: of the first parameters */
        double log_std_init; /* ppo, a2c: of a Gaussian */
        bool has_threads;    /* false: null in JSON, until job_resolve; stays so for mlp */
        uint32_t threads;    /* math threads of cnn on a CPU */
    } policy;
    struct {
        double gamma;
        bool normalize; /* per environment, by mean and unbiased standard deviation */
    } returns;
    struct {
        int reduction; /* reinforce */
        int name;      /* parameter-server: enum job_loss */
    } loss;
    struct {
        int name; /* 0: a kind of job has one, "adam" or "sgd" */
        double lr;
        double beta1, beta2, epsilon; /* adam */
        double momentum;              /* sgd */
        int schedule; /* parameter-server: enum job_schedule, see worker/data_parallel/schedule.h */
    } optimizer;
    struct {
        int of;        /* over environments */
        double weight; /* of the new value */
    } running_reward;
    struct {
        bool has_episodes, has_running_reward; /* false: null in JSON, no limit */
        uint64_t episodes;
        double running_reward;
        bool has_updates, has_epochs; /* likewise */
        uint64_t updates, epochs;
        uint64_t steps; /* ppo, a2c: of all environments */
        bool has_evaluation_reward;
        double evaluation_reward; /* ppo, a2c */
    } stop;
    struct {
        uint64_t every; /* episodes or updates from one line of episodes.log to the next */
        bool tensorboard;
        bool profile; /* the workers measure where their time goes */
    } log;

    /* ---- parameter-server ---- */
    int transport; /* enum job_transport: /transport/memory in JSON */
    int precision; /* enum job_precision: /transport/precision */
    struct {
        int name;         /* enum job_model */
        uint32_t classes; /* outputs */
        uint32_t width;   /* channels of the first stage; 64 is the paper's */
    } model;
    struct {
        bool has_path;
        char path[JOB_PATH_BYTES]; /* a safetensors file whose values the model begins with */
    } init;
    struct {
        uint32_t count;   /* processes */
        uint32_t batch;   /* samples a step, each */
        bool has_threads; /* false: null in JSON, until job_resolve */
        uint32_t threads; /* math threads of each */
        bool has_class;   /* they are processes of Python */
        char class[JOB_ENVIRONMENT_NAME_BYTES], python[JOB_PATH_BYTES];
        char options[JOB_OPTIONS_BYTES]; /* a JSON object */
    } trainers;
    struct {
        uint32_t count;            /* processes; each owns a contiguous shard of the parameters */
        struct job_numbered round; /* first: contributions that make a round; async: the staleness bound */
    } server;
    struct {
        int kind;                      /* enum job_data */
        char path[JOB_PATH_BYTES];     /* the folder with the files, or the text; may be "" for synthetic and
                                          class */
        uint32_t size;                 /* height and width that the model sees */
        int fit;                       /* how an image of another size gets it: enum job_fit */
        uint32_t channels;             /* 3, or 1; gray images are spread over 3 */
        struct job_channels mean, std; /* of pixels in [0, 1]: (pixel - mean) / std */
        uint32_t crop; /* training: pixels of padding on each side before a random crop; 0: none */
        bool flip;     /* training: mirror every other image, at random */
        bool has_limit;
        uint64_t limit; /* only so many training samples, the first ones of the files */
    } data;
    struct {
        bool has_every;
        uint64_t
            every; /* epochs between two evaluations on the held-out data; ppo, a2c: updates; null: none */
        uint32_t batch;           /* samples a forward */
        uint32_t episodes, steps; /* ppo, a2c */
        bool deterministic;       /* ppo, a2c */
    } evaluation;
    struct {
        bool has_every, has_every_s;
        uint64_t every; /* episodes or updates between two checkpoints */
        double every_s; /* seconds between two checkpoints */
        uint32_t keep;  /* checkpoints */
        bool best;      /* keeps the best one apart */
    } checkpoint;

    /* ---- model-parallel, beside transport, init, trainers, server (round all or async, without a bound),
     * evaluation (batch: columns) and checkpoint ---- */
    struct {
        int name;                           /* 0: "rnn" */
        bool has_tokens;                    /* false: null in JSON, as with a text */
        uint32_t tokens;                    /* vocabulary of synthetic data; else 0 */
        uint32_t embedding, hidden, layers; /* widths; LSTM layers, 1..8 */
        double dropout;
    } rnn;                                     /* the group is /model in JSON */
    struct job_numbered placement[JOB_LAYERS]; /* on a trainer: of the job's one trainer */
    struct {
        bool has;
        uint32_t count;
    } threads[JOB_LAYERS]; /* of each layer; null until job_resolve. The loss has trainers.threads */
    struct {
        uint32_t steps;         /* tokens of a column in one update */
        uint32_t updates;       /* of an epoch of synthetic data */
        uint32_t minimum_count; /* of a text */
        double held_out;        /* share of a text's lines, 0 <= x < 1 */
        int classes;            /* /loss/classes: enum job_classes */
        bool has_max_norm;
        double max_norm; /* /optimizer/max_norm; null: 0 */
        double decay;    /* /optimizer/decay */
    } sequence;          /* /data in JSON, but for the keys named here */
    struct {
        double hang_s;
        bool restart;
    } supervise;
    struct {
        int clients; /* enum job_spread: /hosts/observers or /hosts/trainers in JSON */
        int servers; /* enum job_servers_at; reinforce: the agent is on the leader */
        double patience_s;
        bool requeue;
        bool has_listen;
        char listen[JOB_LISTEN_BYTES]; /* /listen in JSON */
    } hosts;
    struct {
        bool has_listen, has_token, has_textfile;
        char listen[JOB_PATH_BYTES], token[JOB_PATH_BYTES], textfile[JOB_PATH_BYTES];
    } metrics;
    uint32_t added; /* observers or trainers beyond `count`: `coalesced join` adds them to a running job. It
                       has no key, and is 0 after reading a file */
};

/* Observers in all, numbered from 0; trainers likewise. */
static inline uint32_t job_observers(const struct job *job)
{
    return job->observers.count + job->added;
}

static inline uint32_t job_trainers(const struct job *job)
{
    return job->trainers.count + job->added;
}

/* Whether the environments are in Python: observers step these, or a child of a command. */
static inline bool job_has_python_environments(const struct job *job)
{
    return job->environment.has_gymnasium || job->environment.has_class || job->environment.has_pettingzoo;
}

/* Whether a value network judges the policy's actions, and a rollout bootstraps: ppo and a2c. */
static inline bool job_is_actor_critic(const struct job *job)
{
    return job->algorithm.name == JOB_ALGORITHM_PPO || job->algorithm.name == JOB_ALGORITHM_A2C;
}

/* Whether the policy learns from a replay buffer: dqn, sac and td3. */
static inline bool job_is_off_policy(const struct job *job)
{
    return job->algorithm.name >= JOB_ALGORITHM_DQN;
}

/* Whether the job ends after a number of steps, and keeps the means of its last episodes: all but reinforce.
 */
static inline bool job_is_stepwise(const struct job *job)
{
    return job->algorithm.name != JOB_ALGORITHM_REINFORCE;
}

/* Whether minibatches of a policy with memory cut environments' steps anywhere: by default where batch_size
 * holds no whole number of sequences. */
static inline bool job_pads_sequences(const struct job *job)
{
    return job->algorithm.has_sequences ? job->algorithm.sequences == JOB_SEQUENCES_PADDED
                                        : job->algorithm.batch_size % job->rollout.steps != 0;
}

/* The first environment of group `group` of an observer, counted from the observer's own first one; of
 * groups: one past the last. Each group has one environment or more. */
static inline uint32_t job_group_begin(const struct job *job, uint32_t group)
{
    return (uint32_t)((uint64_t)group * job->observers.environments / job->observers.groups);
}

/* Parses and checks `text` (length bytes, need not be terminated). `origin` is the file's name for the
 * problems, which read `origin:12:9: /observers/count: expected an integer in 1..1024, got 0`.
 * `overrides` are `--set` arguments, "/pointer=value", applied in order before checking; a problem in one
 * reads `--set /pointer=value: …`. A value that is not JSON is a string. An override replaces what the file
 * and earlier overrides say at its pointer, wrong or not; one of a whole object replaces the object.
 * On success fills *job, every default resolved (`name` from origin's stem). On STATUS_INVALID, *problems
 * holds every problem in the order of the file, one a line; of a text that is not JSON only the first error.
 * After 100 problems one last line says how many more there are. *problems is malloc'ed, and NULL on success.
 * Numbers are read and written in the "C" numeric locale, which no process of ours leaves.
 * The only other error is STATUS_NO_MEMORY. */
enum status job_parse(struct job *job, const char *text, size_t length, const char *origin,
                      const char *const *overrides, size_t override_count, char **problems);

/* Judges the files that a good job names. On failure *pointer is the key at fault, one of the job's kind, and
 * *error a sentence, fit to show. */
typedef enum status job_files_judge(const struct job *job, const char **pointer, struct error *error);

/* Reads the file `path` and parses it; a good job's files are then judged by `judge_files` (NULL: not
 * judged), whose error becomes the one problem, with the place of its key. Errors also as file_open,
 * with one problem; STATUS_INVALID, too: the file is longer than JOB_TEXT_BYTES_MAX. */
enum status job_read_file(struct job *job, struct path path, const char *const *overrides,
                          size_t override_count, job_files_judge *judge_files, char **problems);

/* Fixes the numbers that depend on the machine: trainers.threads, and the threads of each layer. Called once,
 * before job.json is written; numbers that are set stay. */
void job_resolve(struct job *job);

/* The number of updates at which the job reaches the first of its limits, where an epoch has `epoch_updates`
 * updates (0: the data has no epochs). UINT64_MAX: no limit can be reached. */
uint64_t job_updates(const struct job *job, uint64_t epoch_updates);

/* ---- the largest messages that the workers of a model-parallel job send each other ----
 *
 * The wire carries at most WIRE_BODY_BYTES_MAX in one message. The check holds every message to that limit
 * wherever the layers lie and however tensors travel, so that a job that runs in one placement and over one
 * transport runs in all of them. Tensors within the limit are within the kernels' limits, too: the widest
 * ones, the logits, travel, and the gates of an LSTM are 4 times as wide as its output, which travels. */

enum { JOB_MESSAGES_MAX = 7, JOB_MESSAGE_TEXT_BYTES = 256 };

/* A message that is too large. */
struct job_message {
    const char *keys[2]; /* that make it large; /model/tokens stands for a text's vocabulary, too */
    char text[JOB_MESSAGE_TEXT_BYTES]; /* "expected at most ... got ...", the tensor, and the product of keys
                                        */
};

/* Lists the messages that are too large, for a vocabulary of `tokens` words; with 0, not known yet, messages
 * that depend on it are left out. Returns their number. The messages of evaluations are judged only where the
 * data is a text: synthetic data is not evaluated. */
uint32_t job_large_messages(const struct job *job, uint32_t tokens, struct job_message out[JOB_MESSAGES_MAX]);

/* ---- to text ---- */

/* Writes `job` as JSON, every key of its kind present, keys in the table's order, doubles as %.17g: parsing
 * it gives the same struct, bit for bit. The result is malloc'ed, zero-terminated; *bytes is its strlen. NULL
 * when memory ran out. */
char *job_format(const struct job *job, size_t *bytes);

/* ---- documents that are generated from the table: 0, or EOF on error ---- */

/* The JSON schema (draft 2020-12) of job files. Without memory (ENOMEM) nothing is written. */
int job_write_schema(FILE *stream);

/* The manual of job files, a page in mdoc(7). */
int job_write_manual(FILE *stream);

/* The keys for completions: one line for each pointer, followed by the names that its value may be. */
int job_write_pointers(FILE *stream);

#endif
