/* The keys of a job file, row by row, and look-ups among them; see job_table.h. The order of the rows is the
 * order in which a job is written and the manual explains it. */
#include "worker/job/job_table_words.h"

#include <float.h>
#include <string.h>

#define SEED_MAX 9007199254740991.0 /* 2^53 - 1: the largest integer that every JSON reader keeps */
#define HIDDEN_MAX 5792             /* a weight of 4 hidden * hidden floats is as much as a message carries */

/* clang-format off */
#define VALUE(kind, member)                                                                                          \
    .type = (kind), .offset = offsetof(struct job, member), .bytes = sizeof(((struct job *)0)->member)
#define INTEGER(member, low, high) VALUE(JOB_INTEGER, member), .min = (low), .max = (high)
#define WIDTHS(member, low, high)                                                                                    \
    VALUE(JOB_WIDTHS, member), .min = (low), .max = (high), .elements = JOB_WIDTHS_MAX
#define NUMBER(member, low, high) VALUE(JOB_NUMBER, member), .min = (low), .max = (high)
#define BOOLEAN(member) VALUE(JOB_BOOLEAN, member)
#define NAMES(...) .names = (const char *const[]){__VA_ARGS__, NULL} /* in the order of their enum */
#define ENUM(member, ...) VALUE(JOB_ENUM, member), NAMES(__VA_ARGS__)
#define NAME(member) VALUE(JOB_NAME, member)
#define PATH(member, shortest) VALUE(JOB_PATH, member), .min = (shortest), .max = JOB_PATH_BYTES - 1
#define OPTIONS(member) VALUE(JOB_OPTIONS, member), .min = 2, .max = JOB_OPTIONS_BYTES - 1
#define NUMBERED(member) VALUE(JOB_NUMBERED, member)
#define AUTO(member, low, high) VALUE(JOB_AUTO, member), .min = (low), .max = (high)
#define FREQUENCY(member, low, high) VALUE(JOB_FREQUENCY, member), .min = (low), .max = (high)
#define BY_DEFAULT(...) .by_default = #__VA_ARGS__
#define OTHERWISE(value, ...) .otherwise = #value, .otherwise_where = {__VA_ARGS__}
#define NULLABLE(member) .nullable = true, .offset_present = offsetof(struct job, member)
#define TRAINER_OR_SERVER                                                                                            \
    NAMES("trainer", "server"), .pattern = "^(trainer|server ([0-9]|1[0-5]))$",                                      \
    .words = "\"trainer\", or \"server K\" with K in 0..15"
#define MODULE_AND_CLASS                                                                                             \
    .pattern = "^[A-Za-z_][A-Za-z0-9_.]{0,62}:[A-Za-z_][A-Za-z0-9_.]{0,62}$",                                        \
    .words = "module:Class, each at most 63 of the characters A-Z a-z 0-9 _ ."
#define N_STEPS_TEXT                                                                                                 \
    "The number of steps of each environment between two updates. Environments go on from one rollout to the next."
#define BATCH_SIZE_TEXT "The rows that are drawn from the replay buffer for a gradient step."
#define TRAIN_FREQ_TEXT                                                                                              \
    "How many steps of each environment lie between two trainings; or [N, \"episode\"]: so many episodes of the one " \
    "environment."
#define ADAM_RATE_TEXT "Adam's learning rate of the first update."
#define ACTOR_HIDDEN_TEXT                                                                                            \
    "The width of the hidden layer, or a list of the widths of all hidden layers, of the policy and of each critic; "   \
    "or {\"pi\": ..., \"qf\": ...} with one of these for the policy and one for the critics."
#define TAU_TEXT                                                                                                     \
    "How far an update moves the targets towards the networks. 1: they become copies."
#define USE_SDE_TEXT                                                                                                 \
    "Whether a Gaussian explores by noise that is a function of the state (gSDE, Raffin et al., 2021): its "         \
    "deviations depend on the units of the last hidden layer, and in one state it keeps to one action until the "    \
    "function is drawn anew."
/* clang-format on */

const struct job_key job_keys[] = {
    {"/kind", ANY, ENUM(kind, "reinforce", "parameter-server", "model-parallel"),
     .text = "The kind of job. reinforce: an agent learns a policy from the episodes of its observers. "
             "parameter-server: trainers compute the gradients of one model, and servers keep and update its "
             "parameters. model-parallel: the layers of one language model lie on several workers, which "
             "call each other."},
    {"/name", ANY, NAME(name), .pattern = "^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$",
     .words = "1 to 63 of the characters A-Z a-z 0-9 . _ - that begin with neither . nor -",
     .text = "The run directory is runs/NAME. The default is the job file's name without its ending."},
    {"/seed", ANY, INTEGER(seed, 0, SEED_MAX), BY_DEFAULT(543),
     .text = "All random draws follow from the seed: the same seed gives the same log."},
    {"/device", ANY, ENUM(device, "auto", "cpu", "gpu"), BY_DEFAULT("auto"),
     .text = "Where the model is computed. auto: on a GPU if one works, else on the CPU; a line on standard "
             "error says which. With auto, of policies only the CNN and those that may have /policy/dropout "
             "take a GPU. gpu: without a GPU that works the run ends with exit code 69."},

    {"/observers", AGENT, JOB_OBJECT, .text = "The processes that step environments."},
    {"/observers/count", REINFORCE, INTEGER(observers.count, 1, 1024), BY_DEFAULT(1), .unit = "processes",
     .text = "The number of observer processes."},
    {"/observers/count", STEPWISE, INTEGER(observers.count, 0, 1024), BY_DEFAULT(1), .unit = "processes",
     .text = "The number of observer processes. 0: the agent steps the environments itself, which is faster "
             "for a few small ones, whose step takes less time than a message. The numbers are the same."},
    {"/observers/environments", AGENT, INTEGER(observers.environments, 1, JOB_ENVIRONMENTS_MAX),
     BY_DEFAULT(1), .text = "The number of environments in each observer, or of the agent."},
    {"/observers/groups", AGENT, INTEGER(observers.groups, 1, 64), BY_DEFAULT(1),
     .text = "The number of groups that each observer's environments are split into. While one group is "
             "stepped, the agent acts on another. The numbers are the same for every split."},

    {"/environment", AGENT, JOB_OBJECT, .text = "The environment that the agent acts in."},
    {"/environment/name", AGENT, NAME(environment.name), NULLABLE(environment.has_name),
     .pattern = "^[A-Za-z0-9_][A-Za-z0-9_./:-]{0,126}$",
     .words = "1 to 127 of the characters A-Z a-z 0-9 _ . / : -", BY_DEFAULT("CartPole-v1"),
     OTHERWISE(null, IS_SET("/environment/plugin"), IS_SET("/environment/gymnasium"),
               IS_SET("/environment/class"), IS_SET("/environment/pettingzoo")),
     .text = "The name of a built-in environment, or of one of the plug-in's environments. null: the "
             "plug-in's first one, or an environment in Python."},
    {"/environment/plugin", AGENT, PATH(environment.plugin, 1), NULLABLE(environment.has_plugin),
     BY_DEFAULT(null),
     .text = "A shared object with environments in C, written against environment.h; a relative path begins "
             "at the working directory, and a name that is not there is looked for beside the program. null: "
             "the environment is built in, or in Python."},
    {"/environment/gymnasium", AGENT, NAME(environment.gymnasium), NULLABLE(environment.has_gymnasium),
     .pattern = "^[A-Za-z0-9_][A-Za-z0-9_./:-]{0,126}$",
     .words = "1 to 127 of the characters A-Z a-z 0-9 _ . / : -", BY_DEFAULT(null),
     .text = "An id that gymnasium.make knows, or envpool/ID for an environment of EnvPool. The observers "
             "are then processes of Python, with the packages pyzmq and numpy. /environment/options are "
             "keyword arguments."},
    {"/environment/class", AGENT, NAME(environment.class), NULLABLE(environment.has_class), MODULE_AND_CLASS,
     BY_DEFAULT(null),
     .text =
         "A class of one's own, in a module that Python finds from the working directory: a gymnasium.Env, "
         "or a gymnasium.vector.VectorEnv without autoreset. The observers are processes of Python then."},
    {"/environment/pettingzoo", AGENT, NAME(environment.pettingzoo), NULLABLE(environment.has_pettingzoo),
     MODULE_AND_CLASS, BY_DEFAULT(null),
     .text =
         "A function or a class that makes a pettingzoo.ParallelEnv or AECEnv, as \"module:function\"; its "
         "agents, which have the same spaces, share the policy, and each is a row. The observers are "
         "processes of Python then."},
    {"/environment/python", AGENT, PATH(environment.python, 1), BY_DEFAULT("python3"),
     .text = "The interpreter of environments in Python, a path or a name that PATH finds."},
    {"/environment/options", AGENT, OPTIONS(environment.options), BY_DEFAULT({}),
     .text = "The options that the environment is made with."},
    {"/environment/renew", AGENT, BOOLEAN(environment.renew), BY_DEFAULT(false),
     .text =
         "Whether each reset of an environment in Python makes a new one. Some, such as BipedalWalker-v3, "
         "bring something of their last episode along, so that their seed does not decide what comes."},
    {"/environment/atari", AGENT, BOOLEAN(environment.atari), BY_DEFAULT(false),
     .text =
         "Whether a game of ALE's, such as ALE/Pong-v5, is played as in the papers (Machado et al., 2018): "
         "up to 30 idle steps first, 4 frames for each action, the brighter of the last two, 84 x 84 "
         "gray pixels; the button FIRE begins each life. Learning takes a lost life for an end; logs and "
         "evaluations have whole games. It needs the packages ale_py and opencv-python-headless."},
    {"/environment/clip_reward", AGENT, BOOLEAN(environment.clip_reward), BY_DEFAULT(false),
     OTHERWISE(true, IS("/environment/atari", "true")),
     .text = "Whether learning takes the sign of a reward, 1, 0 or -1, in place of the reward. Logs and "
             "evaluations have the rewards themselves."},
    {"/environment/frames", AGENT, INTEGER(environment.frames, 1, JOB_FRAMES_MAX), BY_DEFAULT(1),
     OTHERWISE(4, IS("/environment/atari", "true")),
     .text = "The number of observations that the policy sees at once: the environment's last ones, joined "
             "along the last axis, the oldest first. An image of 84 x 84 x 1 becomes one of 84 x 84 x 4 with "
             "4. After a reset, and a lost life, the first observation is repeated. Several parts with an "
             "image among them have 1."},

    {"/algorithm", AGENT, JOB_OBJECT,
     .text = "How the policy learns. But for those of reinforce, keys have Stable-Baselines3's names and "
             "defaults."},
    {"/algorithm/name", AGENT, ENUM(algorithm.name, "reinforce", "ppo", "a2c", "dqn", "sac", "td3"),
     BY_DEFAULT("reinforce"),
     .text = "reinforce: one step of the policy after each rollout, by the returns (Williams, 1992). ppo: "
             "proximal policy optimization (Schulman et al., 2017), several epochs of minibatches over each "
             "rollout, with a value network. a2c: advantage actor-critic (Mnih et al., 2016), one step of "
             "both networks over each rollout. Three learn from a replay buffer: dqn, for choices (Mnih et "
             "al., 2015); sac, soft actor-critic (Haarnoja et al., 2018), and td3 (Fujimoto et al., 2018), "
             "for floats. The algorithm decides which other keys there are."},
    {"/algorithm/n_steps", PPO, INTEGER(rollout.steps, 1, 100000), BY_DEFAULT(2048), .text = N_STEPS_TEXT},
    {"/algorithm/n_steps", A2C, INTEGER(rollout.steps, 1, 100000), BY_DEFAULT(5), .text = N_STEPS_TEXT},
    {"/algorithm/batch_size", PPO, INTEGER(algorithm.batch_size, 1, JOB_ROLLOUT_ROWS_MAX), BY_DEFAULT(64),
     .unit = "rows",
     .text = "The rows of a minibatch. The last minibatch of an epoch is smaller where the rows do not "
             "divide. Where the policy has a memory, the key sequences says how rows are chosen."},
    {"/algorithm/sequences", PPO, ENUM(algorithm.sequences, "whole", "padded"),
     NULLABLE(algorithm.has_sequences), BY_DEFAULT(null),
     .text = "How a minibatch of a policy with memory is made; ignored without /policy/recurrent. whole: it "
             "has all steps of some environments, so batch_size is a multiple of n_steps. padded: it has "
             "batch_size steps in a row, of one environment after the other, from a place that is drawn for "
             "each epoch, as in sb3-contrib. A sequence that begins in the middle of a rollout begins with "
             "the memory of when it was played. null: whole where batch_size is a multiple of n_steps, else "
             "padded."},
    {"/algorithm/n_epochs", PPO, INTEGER(algorithm.n_epochs, 1, 10000), BY_DEFAULT(10),
     .text = "The number of passes over a rollout."},
    {"/algorithm/gamma", STEPWISE, NUMBER(returns.gamma, 0, 1), BY_DEFAULT(0.99),
     .text = "The discount of a reward for each step that it lies ahead."},
    {"/algorithm/gae_lambda", PPO, NUMBER(algorithm.gae_lambda, 0, 1), BY_DEFAULT(0.95),
     .text = "The decay of generalised advantage estimation."},
    {"/algorithm/gae_lambda", A2C, NUMBER(algorithm.gae_lambda, 0, 1), BY_DEFAULT(1),
     .text = "The decay of generalised advantage estimation. 1: advantages are those of n-step returns."},
    {"/algorithm/learning_rate", PPO, NUMBER(optimizer.lr, 0, 10), .min_open = true, BY_DEFAULT(0.0003),
     .text = ADAM_RATE_TEXT},
    {"/algorithm/learning_rate", A2C, NUMBER(optimizer.lr, 0, 10), .min_open = true, BY_DEFAULT(0.0007),
     .text = "The optimizer's learning rate of the first update."},
    {"/algorithm/learning_rate_schedule", STEPWISE,
     ENUM(algorithm.learning_rate_schedule, "constant", "linear"), BY_DEFAULT("constant"),
     .text = "linear: it falls evenly from update to update and would reach 0 after the last one. The first "
             "update has all of it, as CleanRL's has; Stable-Baselines3's first update has 1 - n / "
             "total_timesteps of it, where n is the steps that were taken before the update."},
    {"/algorithm/clip_range", PPO, NUMBER(algorithm.clip_range, 0, 1e9), .min_open = true, BY_DEFAULT(0.2),
     .text = "How far the probability ratio may move from 1 before it earns nothing more."},
    {"/algorithm/clip_range_schedule", PPO, ENUM(algorithm.clip_range_schedule, "constant", "linear"),
     BY_DEFAULT("constant"), .text = "As learning_rate_schedule."},
    {"/algorithm/clip_range_vf", PPO, NUMBER(algorithm.clip_range_vf, 0, 1e9), .min_open = true,
     NULLABLE(algorithm.has_clip_range_vf), BY_DEFAULT(null),
     .text = "How far the value may move from the one before the update. null: anywhere."},
    {"/algorithm/normalize_advantage", PPO, BOOLEAN(algorithm.normalize_advantage), BY_DEFAULT(true),
     .text = "Whether a minibatch's advantages are shifted and scaled to mean 0 and standard deviation 1."},
    {"/algorithm/normalize_advantage", A2C, BOOLEAN(algorithm.normalize_advantage), BY_DEFAULT(false),
     .text = "Whether a rollout's advantages are shifted and scaled to mean 0 and standard deviation 1."},
    {"/algorithm/ent_coef", ACTOR_CRITIC, NUMBER(algorithm.ent_coef, 0, 1e9), BY_DEFAULT(0),
     .text = "The weight of the entropy in the loss."},
    {"/algorithm/vf_coef", ACTOR_CRITIC, NUMBER(algorithm.vf_coef, 0, 1e9), BY_DEFAULT(0.5),
     .text = "The weight of the value loss."},
    {"/algorithm/value_loss", ACTOR_CRITIC, ENUM(algorithm.value_loss, "mse", "half_mse"), BY_DEFAULT("mse"),
     .text = "mse: the mean square, as in Stable-Baselines3. half_mse: half of it and, under ppo's "
             "clip_range_vf, the greater of the clipped and the plain one, as in CleanRL."},
    {"/algorithm/max_grad_norm", ACTOR_CRITIC, NUMBER(algorithm.max_grad_norm, 0, 1e9), .min_open = true,
     NULLABLE(algorithm.has_max_grad_norm), BY_DEFAULT(0.5),
     .text = "The norm to which a longer gradient is scaled down. null: none."},
    {"/algorithm/target_kl", PPO, NUMBER(algorithm.target_kl, 0, 1e9), .min_open = true,
     NULLABLE(algorithm.has_target_kl), BY_DEFAULT(null),
     .text = "The divergence from the policy before the update that ends an update early, as target_kl_at "
             "says. null: never."},
    {"/algorithm/target_kl_at", PPO, ENUM(algorithm.target_kl_at, "minibatch", "epoch"),
     BY_DEFAULT("minibatch"),
     .text = "minibatch: before the step of a minibatch whose divergence is above 1.5 target_kl, as in "
             "Stable-Baselines3. epoch: after an epoch whose last minibatch was above target_kl, as in "
             "CleanRL. Without target_kl it is ignored."},
    {"/algorithm/bootstrap_truncated", ACTOR_CRITIC, BOOLEAN(algorithm.bootstrap_truncated), BY_DEFAULT(true),
     .text = "Whether a truncated episode's last reward includes the value of its last observation, for the "
             "rewards that would have followed, as in Stable-Baselines3. false: it does not, as in CleanRL's "
             "ppo.py."},
    {"/algorithm/adam_epsilon", ACTOR_CRITIC, NUMBER(optimizer.epsilon, 0, 1), .min_open = true,
     BY_DEFAULT(1e-5), .text = "The term that Adam adds to the root of the squared gradient's running mean."},
    {"/algorithm/use_sde", ACTOR_CRITIC, BOOLEAN(algorithm.use_sde), BY_DEFAULT(false), .text = USE_SDE_TEXT},
    {"/algorithm/sde_sample_freq", ACTOR_CRITIC, INTEGER(algorithm.sde_sample_freq, 1, 100000),
     NULLABLE(algorithm.has_sde_sample_freq), BY_DEFAULT(null), .unit = "steps",
     .text = "How often use_sde draws the function of each environment anew. null: at the beginning of each "
             "rollout, Stable-Baselines3's -1."},
    {"/algorithm/stats_window_size", STEPWISE, INTEGER(algorithm.stats_window_size, 1, 1000000),
     BY_DEFAULT(100), .unit = "episodes",
     .text = "ep_rew_mean and ep_len_mean are means over this number of ended episodes."},
    {"/algorithm/overlap", ACTOR_CRITIC, INTEGER(algorithm.overlap, 0, 1), BY_DEFAULT(0), .unit = "updates",
     .text =
         "How many updates acting lags behind learning. 0: a rollout is played by the parameters of the "
         "update before it. 1: the next rollout is played while the policy learns, by parameters that are "
         "exactly one update older, as in Cleanba; the probability ratio of ppo takes account of that. It "
         "pays where environments wait. The numbers depend on this key, and not on who was faster."},
    {"/algorithm/use_rms_prop", A2C, BOOLEAN(algorithm.use_rms_prop), BY_DEFAULT(true),
     .text = "true: the optimizer is RMSprop, whose running mean keeps 0.99 at each step. false: Adam."},
    {"/algorithm/rms_prop_eps", A2C, NUMBER(algorithm.rms_prop_eps, 0, 1), .min_open = true, BY_DEFAULT(1e-5),
     .text = "The term that RMSprop adds to the root of the squared gradient's running mean."},

    {"/algorithm/buffer_size", OFF_POLICY, INTEGER(replay.rows, 1, JOB_REPLAY_ROWS_MAX), BY_DEFAULT(1000000),
     .unit = "rows",
     .text =
         "The transitions that the replay buffer holds, of all environments together; a new one takes the "
         "place of the oldest. The last observation of an episode that was cut off takes a row, too."},
    {"/algorithm/learning_starts", OFF_POLICY, INTEGER(replay.learning_starts, 0, 1e15), BY_DEFAULT(100),
     .unit = "steps",
     .text = "The steps, of all environments together, in which actions are drawn evenly and nothing is "
             "learned."},
    {"/algorithm/batch_size", DQN, INTEGER(algorithm.batch_size, 1, JOB_REPLAY_BATCH_MAX), BY_DEFAULT(32),
     .unit = "rows", .text = BATCH_SIZE_TEXT},
    {"/algorithm/batch_size", SAC | TD3, INTEGER(algorithm.batch_size, 1, JOB_REPLAY_BATCH_MAX),
     BY_DEFAULT(256), .unit = "rows", .text = BATCH_SIZE_TEXT},
    {"/algorithm/train_freq", DQN, FREQUENCY(replay.train_freq, 1, 1e6), BY_DEFAULT(4),
     .text = TRAIN_FREQ_TEXT},
    {"/algorithm/train_freq", SAC | TD3, FREQUENCY(replay.train_freq, 1, 1e6), BY_DEFAULT(1),
     .text = TRAIN_FREQ_TEXT},
    {"/algorithm/gradient_steps", OFF_POLICY, INTEGER(replay.gradient_steps, -1, 1000000), BY_DEFAULT(1),
     .text = "The gradient steps of a training. -1: as many as steps of environments since the last one."},
    {"/algorithm/overlap", OFF_POLICY, INTEGER(algorithm.overlap, 0, JOB_OVERLAP_MAX), BY_DEFAULT(0),
     .text =
         "How many trainings, of gradient_steps each, acting lags behind learning. 0: actions wait "
         "for the training before them, as in Stable-Baselines3. With 1 or more, environments are stepped "
         "while the policy learns, and actions come from parameters that are exactly so many trainings "
         "old. The numbers depend on this key, and not on who was faster. 0 with the network cnn, which acts "
         "and learns on one device."},
    {"/algorithm/learning_rate", DQN, NUMBER(optimizer.lr, 0, 10), .min_open = true, BY_DEFAULT(0.0001),
     .text = ADAM_RATE_TEXT},
    {"/algorithm/learning_rate", SAC, NUMBER(optimizer.lr, 0, 10), .min_open = true, BY_DEFAULT(0.0003),
     .text = ADAM_RATE_TEXT},
    {"/algorithm/learning_rate", TD3, NUMBER(optimizer.lr, 0, 10), .min_open = true, BY_DEFAULT(0.001),
     .text = ADAM_RATE_TEXT},
    {"/algorithm/adam_epsilon", OFF_POLICY, NUMBER(optimizer.epsilon, 0, 1), .min_open = true,
     BY_DEFAULT(1e-8), .text = "The term that Adam adds to the root of the squared gradient's running mean."},
    {"/algorithm/tau", DQN, NUMBER(replay.tau, 0, 1), .min_open = true, BY_DEFAULT(1), .text = TAU_TEXT},
    {"/algorithm/tau", SAC | TD3, NUMBER(replay.tau, 0, 1), .min_open = true, BY_DEFAULT(0.005),
     .text = TAU_TEXT},
    {"/algorithm/target_update_interval", DQN, INTEGER(replay.target_update_interval, 1, 1e9),
     BY_DEFAULT(10000), .unit = "steps",
     .text = "How many steps of all environments lie between two updates of the target network."},
    {"/algorithm/target_update_interval", SAC, INTEGER(replay.target_update_interval, 1, 1e9), BY_DEFAULT(1),
     .unit = "gradient steps", .text = "How many gradient steps lie between two updates of the targets."},
    {"/algorithm/exploration_fraction", DQN, NUMBER(replay.exploration_fraction, 0, 1), .min_open = true,
     BY_DEFAULT(0.1),
     .text = "The share of /stop/steps over which the probability of a random action falls evenly."},
    {"/algorithm/exploration_initial_eps", DQN, NUMBER(replay.exploration_initial_eps, 0, 1), BY_DEFAULT(1),
     .text = "The probability of a random action in the first step."},
    {"/algorithm/exploration_final_eps", DQN, NUMBER(replay.exploration_final_eps, 0, 1), BY_DEFAULT(0.05),
     .text = "The probability of a random action after exploration_fraction."},
    {"/algorithm/max_grad_norm", DQN, NUMBER(algorithm.max_grad_norm, 0, 1e9), .min_open = true,
     NULLABLE(algorithm.has_max_grad_norm), BY_DEFAULT(10),
     .text = "The norm to which a longer gradient is scaled down. null: none."},
    {"/algorithm/double_q", DQN, BOOLEAN(replay.double_q), BY_DEFAULT(false),
     .text = "Whether the network chooses the next action, and the target network judges it (van Hasselt et "
             "al., 2016). false: the target network does both."},
    {"/algorithm/prioritized_replay", DQN, BOOLEAN(replay.prioritized), BY_DEFAULT(false),
     .text = "Whether transitions are drawn by how wrong their values were (Schaul et al., 2016). false: "
             "evenly."},
    {"/algorithm/prioritized_replay_alpha", DQN, NUMBER(replay.alpha, 0, 1), BY_DEFAULT(0.6),
     .text = "With prioritized_replay, the power of the error by which a transition is drawn. 0: evenly."},
    {"/algorithm/prioritized_replay_beta", DQN, NUMBER(replay.beta, 0, 1), BY_DEFAULT(0.4),
     .text =
         "With prioritized_replay, how far weights in the loss make up for the uneven draws at the begin. "
         "It grows evenly to 1, which it would reach at /stop/steps."},
    {"/algorithm/ent_coef", SAC, AUTO(replay.ent_coef, 0, 1e9),
     .pattern = "^auto(_[0-9]+([.][0-9]+)?(e[+-]?[0-9]+)?)?$",
     .words = "\"auto\", or \"auto_X\" with a number X", BY_DEFAULT("auto"),
     .text = "The weight of the entropy in the returns. auto: it is learned, from 1 on, or from the number "
             "behind auto_."},
    {"/algorithm/target_entropy", SAC, AUTO(replay.target_entropy, -1e9, 1e9), .pattern = "^auto$",
     .words = "\"auto\"", BY_DEFAULT("auto"),
     .text = "The entropy that a learned ent_coef leads to. auto: minus the number of floats of an action."},
    {"/algorithm/n_critics", SAC | TD3, INTEGER(replay.n_critics, 1, JOB_CRITICS_MAX), BY_DEFAULT(2),
     .text = "The number of value networks; the least of their values counts. 1 makes td3 DDPG, with a "
             "policy_delay of 1 and no target_policy_noise."},
    {"/algorithm/use_sde", SAC, BOOLEAN(algorithm.use_sde), BY_DEFAULT(false), .text = USE_SDE_TEXT},
    {"/algorithm/sde_sample_freq", SAC, INTEGER(algorithm.sde_sample_freq, 1, 100000),
     NULLABLE(algorithm.has_sde_sample_freq), BY_DEFAULT(null), .unit = "steps",
     .text = "How often use_sde draws the function of each environment anew. null: after each training, "
             "Stable-Baselines3's -1."},
    {"/algorithm/use_expln", SAC, BOOLEAN(replay.use_expln), BY_DEFAULT(false),
     .text = "With use_sde: whether deviations are exp(x) below 0 and 1 + log(1 + x) above, in the place of "
             "exp(x)."},
    {"/algorithm/policy_delay", TD3, INTEGER(replay.policy_delay, 1, 1000000), BY_DEFAULT(2),
     .unit = "gradient steps",
     .text = "The policy and the targets take a step with every so many of the critics'."},
    {"/algorithm/target_policy_noise", TD3, NUMBER(replay.target_policy_noise, 0, 1e9), BY_DEFAULT(0.2),
     .text = "The standard deviation of the noise on the target policy's action."},
    {"/algorithm/target_noise_clip", TD3, NUMBER(replay.target_noise_clip, 0, 1e9), BY_DEFAULT(0.5),
     .text = "The bound that this noise is clipped to, on both sides of 0."},
    {"/algorithm/noise_type", SAC | TD3, ENUM(replay.noise_type, "normal", "ornstein-uhlenbeck"),
     NULLABLE(replay.has_noise_type), BY_DEFAULT(null),
     .text = "The noise that is added to actions, whose floats lie in -1..1 here. ornstein-uhlenbeck: one "
             "that goes on from step to step, with theta 0.15 and dt 0.01. null: none."},
    {"/algorithm/noise_std", SAC | TD3, NUMBER(replay.noise_std, 0, 1e9), BY_DEFAULT(0.1),
     .text = "The standard deviation of noise_type."},

    {"/normalize", ACTOR_CRITIC, JOB_OBJECT,
     .text =
         "Running statistics that scale observations and rewards, as Stable-Baselines3's VecNormalize "
         "does. They do not change during a rollout. The rollout is added to those of the returns before its "
         "update, and to those of the observations after it. "
         "Checkpoints keep them; evaluate and play use them."},
    {"/normalize/norm_obs", ACTOR_CRITIC, BOOLEAN(normalize.observations), BY_DEFAULT(false),
     .text = "Whether each element of an observation is shifted by its mean and divided by its standard "
             "deviation. Images among several parts stay as they are."},
    {"/normalize/norm_reward", ACTOR_CRITIC, BOOLEAN(normalize.rewards), BY_DEFAULT(false),
     .text = "Whether the learner divides rewards by the standard deviation of the discounted returns. The "
             "log has the rewards undivided."},
    {"/normalize/clip_obs", ACTOR_CRITIC, NUMBER(normalize.clip_observations, 0, 1e9), .min_open = true,
     BY_DEFAULT(10), .text = "The bound that a normalized element is clipped to, on both sides of 0."},
    {"/normalize/clip_reward", ACTOR_CRITIC, NUMBER(normalize.clip_rewards, 0, 1e9), .min_open = true,
     BY_DEFAULT(10), .text = "The bound that a normalized reward is clipped to, on both sides of 0."},

    {"/rollout", OFF_POLICY, JOB_OBJECT, .text = "What lies between two lines of the logs."},
    {"/rollout/steps", OFF_POLICY, INTEGER(rollout.steps, 1, 100000), BY_DEFAULT(1000), .unit = "steps",
     .text =
         "The number of steps of each environment from one line of episodes.jsonl to the next. "
         "Checkpoints and evaluations stand between two of these rollouts; environments go on from one to "
         "the next. An observer that dies costs its successor the steps of a rollout."},
    {"/replay", OFF_POLICY, JOB_OBJECT, .text = "The replay buffer."},
    {"/replay/save", OFF_POLICY, BOOLEAN(replay.save), BY_DEFAULT(true),
     .text = "Whether the replay buffer is a file of the run, replay.bin, so that a run that is resumed goes "
             "on with the same numbers. false: it lies in memory alone, and a run that is resumed, or whose "
             "agent died, fills a new one."},

    {"/rollout", REINFORCE, JOB_OBJECT,
     .text = "The steps that are played between two updates of the policy."},
    {"/rollout/mode", REINFORCE, ENUM(rollout.mode, "steps", "episode"), BY_DEFAULT("steps"),
     .text = "steps: every environment takes a fixed number of steps and is reset when an episode ends. "
             "episode: every environment plays one whole episode."},
    {"/rollout/steps", REINFORCE, INTEGER(rollout.steps, 1, 100000), BY_DEFAULT(500),
     .text = "The number of steps of each environment in the mode steps. The mode episode ignores it."},
    {"/rollout/begin", REINFORCE, ENUM(rollout.begin, "reset", "continue"), BY_DEFAULT("reset"),
     .text = "reset: every environment begins anew with each episode of the job. continue: it goes on where "
             "the episode before left it, so its own episodes may span many of the job's. The reward is then "
             "that of the environments' episodes that have ended."},

    {"/coalesce", AGENT, JOB_OBJECT,
     .text = "How the agent joins the observers' requests for actions into batches."},
    {"/coalesce/mode", AGENT, ENUM(coalesce.mode, "off", "barrier", "dynamic"), BY_DEFAULT("barrier"),
     .text = "off: each request is a batch. barrier: a batch is due when every living environment waits for "
             "an action. dynamic: as barrier, and also when max_batch rows wait, or when the oldest row has "
             "waited max_delay_us."},
    {"/coalesce/max_batch", AGENT, INTEGER(coalesce.max_batch, 1, JOB_ENVIRONMENTS_MAX), BY_DEFAULT(64),
     .unit = "rows",
     .text = "The number of waiting rows at which a batch is due in the mode dynamic. The other modes ignore "
             "it."},
    {"/coalesce/max_delay_us", AGENT, INTEGER(coalesce.max_delay_us, 0, 1000000), BY_DEFAULT(0),
     .unit = "microseconds",
     .text = "The time that the oldest row may wait in the mode dynamic; with 0 a batch takes the rows that "
             "are there. The other modes ignore it."},

    {"/policy", AGENT, JOB_OBJECT,
     .text =
         "The policy network. The environment says what it reads and chooses: floats or bytes; one choice or "
         "several, by softmax; or floats, by a diagonal Gaussian whose deviations do not depend on the "
         "state. An environment may have action masks: choices that a mask forbids have probability 0. "
         "Environments in C set has_mask (environment.h), those in Python give info['action_mask']."},
    {"/policy/network", REINFORCE | ACTOR_CRITIC | DQN, ENUM(policy.network, "mlp", "cnn"), BY_DEFAULT("mlp"),
     OTHERWISE("cnn", IS("/environment/atari", "true")),
     .text =
         "mlp: dense layers over the observation as one vector. cnn: for images of height, width and "
         "channels, three convolutions (32 of 8x8 with stride 4, 64 of 4x4 with stride 2, 64 of 3x3) and "
         "a layer of 512 units, with ReLU (Mnih et al., 2015). Among several parts of an observation each "
         "image has convolutions of its own, with a layer of 256 units; the hidden layers read these and the "
         "other parts, as with Stable-Baselines3's CombinedExtractor."},
    {"/policy/hidden", REINFORCE, WIDTHS(policy.hidden, 1, 1024), BY_DEFAULT([128]), .unit = "units",
     .text = "The width of the hidden layer, or a list of the widths of all hidden layers. The network cnn "
             "uses it only for an observation of several parts."},
    {"/policy/hidden", ACTOR_CRITIC, WIDTHS(policy.hidden, 1, 1024), .second = "vf", BY_DEFAULT([ 64, 64 ]),
     .unit = "units",
     .text =
         "The width of the hidden layer, or a list of the widths of all hidden layers, of the policy "
         "and, unless it is shared, once more of the value network; or {\"pi\": ..., \"vf\": ...} with one "
         "of these for the policy and one for the value, as Stable-Baselines3's net_arch. With an explicit "
         "value_network of shared both must be alike where they are one. The network cnn uses it only for an "
         "observation of several parts."},
    {"/policy/hidden", DQN, WIDTHS(policy.hidden, 1, 1024), BY_DEFAULT([ 64, 64 ]), .unit = "units",
     .text = "The width of the hidden layer, or a list of the widths of all hidden layers. The network cnn "
             "uses it only for an observation of several parts."},
    {"/policy/hidden", SAC, WIDTHS(policy.hidden, 1, 1024), .second = "qf", BY_DEFAULT([ 256, 256 ]),
     .unit = "units", .text = ACTOR_HIDDEN_TEXT},
    {"/policy/hidden", TD3, WIDTHS(policy.hidden, 1, 1024), .second = "qf", BY_DEFAULT([ 400, 300 ]),
     .unit = "units", .text = ACTOR_HIDDEN_TEXT},
    {"/policy/dueling", DQN, BOOLEAN(policy.dueling), BY_DEFAULT(false),
     .text =
         "Whether a value of an action is the state's value plus the action's advantage over the mean, two "
         "outputs of the last layer (Wang et al., 2016)."},
    {"/policy/activation", OFF_POLICY, ENUM(policy.activation, "relu", "tanh"), BY_DEFAULT("relu"),
     .text = "The function of the hidden units. The network cnn uses it only for an observation of several "
             "parts."},
    {"/policy/log_std_init", SAC, NUMBER(policy.log_std_init, -20, 2), BY_DEFAULT(-3),
     .text = "With use_sde, the logarithm of the first standard deviations."},
    {"/policy/activation", ACTOR_CRITIC, ENUM(policy.activation, "relu", "tanh"), BY_DEFAULT("tanh"),
     .text = "The function of the hidden units. The network cnn uses it only for an observation of several "
             "parts."},
    {"/policy/value_network", ACTOR_CRITIC, ENUM(policy.value_network, "separate", "shared"),
     NULLABLE(policy.has_value_network), BY_DEFAULT(null),
     .text = "separate: the value network has hidden layers of its own. shared: the value is one more output "
             "behind the policy's hidden layers. null: separate for the network mlp, shared for cnn, as in "
             "Stable-Baselines3's MlpPolicy and CnnPolicy. Where several parts include images, only the "
             "convolutions are separate or shared."},
    {"/policy/recurrent", ACTOR_CRITIC, ENUM(policy.recurrent, "lstm", "gru"), NULLABLE(policy.has_recurrent),
     BY_DEFAULT(null),
     .text = "The cell of recurrent layers, which give the policy a memory of its episode. They read the "
             "observation, or what the network cnn makes of an image; the hidden layers and the outputs read "
             "them, as in sb3-contrib's RecurrentPPO. null: the policy has no memory, and the next four keys "
             "are ignored."},
    {"/policy/lstm_hidden_size", ACTOR_CRITIC, INTEGER(policy.lstm_hidden_size, 1, 1024), BY_DEFAULT(256),
     .unit = "units", .text = "The number of units of each recurrent layer."},
    {"/policy/n_lstm_layers", ACTOR_CRITIC, INTEGER(policy.n_lstm_layers, 1, 4), BY_DEFAULT(1),
     .unit = "layers", .text = "The number of recurrent layers, each on top of the one before."},
    {"/policy/shared_lstm", ACTOR_CRITIC, BOOLEAN(policy.shared_lstm), BY_DEFAULT(false),
     .text =
         "true: the value reads the policy's recurrent layers, which take no gradient from the value; "
         "enable_critic_lstm must be false. With an explicit value_network of shared this key stays false, "
         "and the next one is ignored: the value reads the policy's layers, and its gradient flows through "
         "them, as in CleanRL."},
    {"/policy/enable_critic_lstm", ACTOR_CRITIC, BOOLEAN(policy.enable_critic_lstm), BY_DEFAULT(true),
     .text = "true: the value has recurrent layers of its own. false, without shared_lstm: the value has a "
             "linear layer in their place, and no memory."},
    {"/policy/ortho_init", ACTOR_CRITIC, BOOLEAN(policy.ortho_init), BY_DEFAULT(true),
     .text = "Whether the first weights are orthogonal, with gains sqrt(2) in hidden layers, 0.01 for the "
             "policy's outputs and 1 for the value's (Stable-Baselines3's ortho_init). false: uniform, as "
             "PyTorch's Linear. Recurrent layers begin as PyTorch's own either way, unless an explicit "
             "value_network of shared makes them orthogonal, with gain 1 and biases 0, as CleanRL's."},
    {"/policy/log_std_init", ACTOR_CRITIC, NUMBER(policy.log_std_init, -20, 2), BY_DEFAULT(0),
     .text = "The logarithm of the first standard deviations of a Gaussian."},
    {"/policy/activation", REINFORCE, ENUM(policy.activation, "relu", "tanh"), BY_DEFAULT("relu"),
     .text = "The function of the hidden units. The network cnn uses it only for an observation of several "
             "parts."},
    {"/policy/dropout", REINFORCE, NUMBER(policy.dropout, 0, 1), .max_open = true,
     NULLABLE(policy.has_dropout), BY_DEFAULT(null),
     .text = "The probability that a hidden unit is dropped in training, rounded to a multiple of 1/65536. "
             "One hidden layer with ReLU can have it, over at most 16 floats and one choice of at most 16; "
             "null is 0.6 there, and 0 for every other policy."},
    {"/policy/threads", AGENT, INTEGER(policy.threads, 1, 1024), NULLABLE(policy.has_threads),
     BY_DEFAULT(null), .unit = "threads",
     .text =
         "The math threads of the policy on a CPU. null: one for each processor. The last bits of the "
         "gradients of the network cnn depend on their number, which is fixed when the run begins and kept "
         "for --resume. The network mlp gives the same bits with any number. With dropout it learns from "
         "8,192 rows or more by several threads. With ppo and a2c policy and value learn at once where they "
         "share no layer; with more threads than these two, so do all parts of 256 rows of a minibatch."},

    {"/returns", REINFORCE, JOB_OBJECT, .text = "How rewards become returns."},
    {"/returns/gamma", REINFORCE, NUMBER(returns.gamma, 0, 1), BY_DEFAULT(1),
     .text = "The discount of a reward for each step that it lies ahead."},
    {"/returns/normalize", REINFORCE, BOOLEAN(returns.normalize), BY_DEFAULT(false),
     .text = "Whether each environment's returns are shifted and scaled to mean 0 and standard deviation 1."},
    {"/transport", TRAINERS, JOB_OBJECT, .shorthand = "memory",
     .text = "How tensors travel between workers. The value of memory may stand for the whole, as in "
             "\"transport\": \"inline\"."},
    {"/transport/memory", TRAINERS, ENUM(transport, "shared", "inline"), BY_DEFAULT("shared"),
     .text = "shared: in shared memory, without a copy, and between hosts inside messages. inline: inside "
             "messages. Both give the same numbers. The hosts of a parameter-server job need inline if their "
             "processors want different layouts, or if only some have a GPU."},
    {"/transport/precision", SERVER, ENUM(precision, "float32", "bfloat16"), BY_DEFAULT("float32"),
     .text = "The form of gradients inside messages. bfloat16: half the bytes. A trainer rounds each element "
             "to the nearest bfloat16 and adds the rounding error to that element's next gradient. A trainer "
             "that is replaced or resumed begins without such errors, so the numbers are not those of an "
             "undisturbed run. Models, and gradients in shared memory, keep float32."},

    {"/model", SERVER, JOB_OBJECT, .text = "The model: a ResNet as in torchvision."},
    {"/model/name", SERVER, ENUM(model.name, "resnet18", "resnet50"), BY_DEFAULT("resnet50"),
     .text = "The architecture, named by its number of layers."},
    {"/model/classes", SERVER, INTEGER(model.classes, 1, 100000), BY_DEFAULT(30),
     .text = "The number of outputs. The labels are 0 to classes - 1."},
    {"/model/width", SERVER, INTEGER(model.width, 1, 1024), BY_DEFAULT(64), .unit = "channels",
     .text = "The number of channels of the first stage; 64 in the paper."},

    {"/model", PARALLEL, JOB_OBJECT,
     .text = "The model: a language model of an embedding, an LSTM and a decoder."},
    {"/model/name", PARALLEL, ENUM(rnn.name, "rnn"), BY_DEFAULT("rnn"), .text = "The architecture."},
    {"/model/tokens", PARALLEL, INTEGER(rnn.tokens, 1, JOB_TOKENS_MAX), NULLABLE(rnn.has_tokens),
     BY_DEFAULT(10), OTHERWISE(null, IS("/data/kind", "text")),
     .text = "The number of tokens in the vocabulary of synthetic data."},
    {"/model/embedding", PARALLEL, INTEGER(rnn.embedding, 1, 16384), BY_DEFAULT(2),
     .text = "The number of elements of a token's vector."},
    {"/model/hidden", PARALLEL, INTEGER(rnn.hidden, 1, HIDDEN_MAX), BY_DEFAULT(3), .unit = "units",
     .text = "The width of each LSTM layer."},
    {"/model/layers", PARALLEL, INTEGER(rnn.layers, 1, JOB_LSTM_LAYERS_MAX), BY_DEFAULT(4),
     .text = "The number of LSTM layers."},
    {"/model/dropout", PARALLEL, NUMBER(rnn.dropout, 0, 1), .max_open = true, BY_DEFAULT(0.5),
     .text = "The probability that an output of the embedding or of an LSTM layer is dropped in training, "
             "rounded to a multiple of 1/65536."},

    {"/placement", PARALLEL, JOB_OBJECT,
     .text = "The worker that each layer of the model lies on: \"trainer\", or \"server K\" for the server "
             "with the number K. All placements give the same numbers."},
    {"/placement/embedding", PARALLEL, NUMBERED(placement[JOB_LAYER_EMBEDDING]), TRAINER_OR_SERVER,
     BY_DEFAULT("server 0"), .text = "The place of the embedding."},
    {"/placement/lstm", PARALLEL, NUMBERED(placement[JOB_LAYER_LSTM]), TRAINER_OR_SERVER,
     BY_DEFAULT("trainer"), .text = "The place of the LSTM layers."},
    {"/placement/decoder", PARALLEL, NUMBERED(placement[JOB_LAYER_DECODER]), TRAINER_OR_SERVER,
     BY_DEFAULT("server 0"),
     .text = "The place of the decoder, which turns the output of the LSTM into logits."},

    {"/threads", PARALLEL, JOB_OBJECT,
     .text = "The math threads of each layer, on whatever worker the layer lies. Their number can change the "
             "last bits of a sum, so it is fixed when the run begins and kept for --resume."},
    {"/threads/embedding", PARALLEL, INTEGER(threads[JOB_LAYER_EMBEDDING].count, 1, 1024),
     NULLABLE(threads[JOB_LAYER_EMBEDDING].has), BY_DEFAULT(null), .unit = "threads",
     .text = "The math threads of the embedding. null: one for each processor."},
    {"/threads/lstm", PARALLEL, INTEGER(threads[JOB_LAYER_LSTM].count, 1, 1024),
     NULLABLE(threads[JOB_LAYER_LSTM].has), BY_DEFAULT(null), .unit = "threads",
     .text = "The math threads of the LSTM layers. null: one for each processor."},
    {"/threads/decoder", PARALLEL, INTEGER(threads[JOB_LAYER_DECODER].count, 1, 1024),
     NULLABLE(threads[JOB_LAYER_DECODER].has), BY_DEFAULT(null), .unit = "threads",
     .text = "The math threads of the decoder. null: one for each processor."},
    {"/init", TRAINERS, PATH(init.path, 1), NULLABLE(init.has_path), BY_DEFAULT(null),
     .text = "A safetensors file with the initial values of all parameters. null: they are drawn at random."},

    {"/trainers", TRAINERS, JOB_OBJECT, .text = "The processes that compute gradients."},
    {"/trainers/count", SERVER, INTEGER(trainers.count, 1, JOB_TRAINERS_MAX), BY_DEFAULT(5),
     .unit = "processes", .text = "The number of trainer processes."},
    {"/trainers/batch", SERVER, INTEGER(trainers.batch, 1, 65536), BY_DEFAULT(20), .unit = "samples",
     .text = "The number of samples that each trainer takes in a step."},
    {"/trainers/count", PARALLEL, INTEGER(trainers.count, 1, JOB_TRAINERS_MAX), BY_DEFAULT(1),
     .unit = "processes",
     .text = "The number of trainer processes, which share the layers. The first trainer leads: it writes "
             "the log and the checkpoints."},
    {"/trainers/batch", PARALLEL, INTEGER(trainers.batch, 1, 65536), BY_DEFAULT(3), .unit = "columns",
     .text = "The number of columns of tokens that each trainer takes in a step."},
    {"/trainers/threads", TRAINERS, INTEGER(trainers.threads, 1, 1024), NULLABLE(trainers.has_threads),
     BY_DEFAULT(null), .unit = "threads",
     .text =
         "The math threads of each trainer; of a model-parallel job, those that compute its loss. null: the "
         "processors divided by the trainers, at least 1, fixed when the run begins and kept for --resume."},
    {"/trainers/class", SERVER, NAME(trainers.class), NULLABLE(trainers.has_class), MODULE_AND_CLASS,
     BY_DEFAULT(null),
     .text =
         "A class that makes the batches, in a module that Python finds from the working directory; "
         "trainer_data:Images makes those of /data, synthetic or idx. With /data/kind \"class\" also a "
         "torch.utils.data.Dataset, or a function that returns a pair of these: the training samples and "
         "those held out. The trainers are then processes of Python, with the packages pyzmq, numpy, torch "
         "and torchvision: PyTorch computes the gradients. null: the trainers are this program."},
    {"/trainers/python", SERVER, PATH(trainers.python, 1), BY_DEFAULT("python3"),
     .text = "The interpreter of trainers in Python, a path or a name that PATH finds."},
    {"/trainers/options", SERVER, OPTIONS(trainers.options), BY_DEFAULT({}),
     .text = "Keyword arguments for /trainers/class."},

    {"/server", SERVER, JOB_OBJECT, .text = "The processes that keep and update the parameters."},
    {"/server/count", SERVER, INTEGER(server.count, 1, JOB_SERVERS_MAX), BY_DEFAULT(1), .unit = "processes",
     .text = "The number of parameter servers. Each keeps a contiguous shard of the parameters."},
    {"/server/round", SERVER, NUMBERED(server.round), NAMES("all", "first", "async"), BY_DEFAULT("all"),
     .pattern = "^(all|first ([1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-6])|async ([0-9]|[1-5][0-9]|6[0-4]))$",
     .words = "\"all\", \"first K\" with K in 1..256, or \"async S\" with S in 0..64",
     .text = "Which gradients make an update. all: the sum of every trainer's. first K: the sum of the first "
             "K that arrive; later ones are dropped and counted. async S: each gradient alone, if it was "
             "computed from parameters at most S updates old. Under first and async the order of arrival "
             "decides the numbers."},

    {"/server", PARALLEL, JOB_OBJECT, .text = "The processes that hold layers which trainers share."},
    {"/server/count", PARALLEL, INTEGER(server.count, 1, JOB_SERVERS_MAX), BY_DEFAULT(1), .unit = "processes",
     .text = "The number of server processes. A server need not hold a layer."},
    {"/server/round", PARALLEL, ENUM(server.round.name, "all", "", "async"), BY_DEFAULT("all"),
     .text = "Which gradients make an update. all: the sum of every trainer's. async: each gradient alone, "
             "as it arrives, from the parameters that its forward pass read, however old they are. Under "
             "async the order of arrival decides the numbers."},

    {"/loss", REINFORCE | TRAINERS, JOB_OBJECT, .text = "The loss that is minimized."},
    {"/loss/reduction", REINFORCE, ENUM(loss.reduction, "sum", "mean_over_environments"), BY_DEFAULT("sum"),
     .text = "sum: the sum of -log(probability) * return over all rows. mean_over_environments: that sum "
             "divided by the number of environments."},
    {"/loss/name", SERVER, ENUM(loss.name, "mse", "cross_entropy"), BY_DEFAULT("mse"),
     .text = "mse: the mean squared distance to the label's one-hot row. cross_entropy: the cross entropy of "
             "the softmax."},
    {"/loss/classes", PARALLEL, ENUM(sequence.classes, "tokens", "batch"), BY_DEFAULT("tokens"),
     .text = "The classes of the cross entropy. tokens: the vocabulary. batch: the columns of the batch, as "
             "in PyTorch's tutorial."},

    {"/optimizer", REINFORCE | TRAINERS, JOB_OBJECT, .text = "How a gradient changes the parameters."},
    {"/optimizer/name", REINFORCE, ENUM(optimizer.name, "adam"), BY_DEFAULT("adam"), .text = "The method."},
    {"/optimizer/name", TRAINERS, ENUM(optimizer.name, "sgd"), BY_DEFAULT("sgd"), .text = "The method."},
    {"/optimizer/lr", REINFORCE, NUMBER(optimizer.lr, 0, 10), .min_open = true, BY_DEFAULT(0.01),
     .text = "The learning rate."},
    {"/optimizer/lr", SERVER, NUMBER(optimizer.lr, 0, 10), .min_open = true, BY_DEFAULT(0.001),
     .text = "The learning rate of the first update."},
    {"/optimizer/lr", PARALLEL, NUMBER(optimizer.lr, 0, 100), .min_open = true, BY_DEFAULT(0.05),
     .text = "The learning rate of the first update."},
    {"/optimizer/beta1", REINFORCE, NUMBER(optimizer.beta1, 0, 1), .max_open = true, BY_DEFAULT(0.9),
     .text = "The decay of the gradient's running mean."},
    {"/optimizer/beta2", REINFORCE, NUMBER(optimizer.beta2, 0, 1), .max_open = true, BY_DEFAULT(0.999),
     .text = "The decay of the squared gradient's running mean."},
    {"/optimizer/epsilon", REINFORCE, NUMBER(optimizer.epsilon, 0, 1), .min_open = true, BY_DEFAULT(1e-8),
     .text = "The term that is added to the root of the squared gradient's running mean."},
    {"/optimizer/momentum", SERVER, NUMBER(optimizer.momentum, 0, 1), .max_open = true, BY_DEFAULT(0.9),
     .text = "The share of the last step that goes into the next."},
    {"/optimizer/schedule", SERVER, ENUM(optimizer.schedule, "constant", "linear"), BY_DEFAULT("constant"),
     .text = "The course of the learning rate. linear: it falls evenly and would reach 0 one update after "
             "the last."},
    {"/optimizer/momentum", PARALLEL, NUMBER(optimizer.momentum, 0, 1), .max_open = true, BY_DEFAULT(0),
     .text = "The share of the last step that goes into the next."},
    {"/optimizer/schedule", PARALLEL, ENUM(optimizer.schedule, "constant", "", "plateau"),
     BY_DEFAULT("constant"),
     .text = "The course of the learning rate. plateau: it is multiplied by decay when an evaluation finds "
             "the held-out loss no lower than the lowest so far."},
    {"/optimizer/decay", PARALLEL, NUMBER(sequence.decay, 0, 1), .min_open = true, .max_open = true,
     BY_DEFAULT(0.25),
     .text = "The factor of the learning rate under the schedule plateau. The schedule constant ignores it."},
    {"/optimizer/max_norm", PARALLEL, NUMBER(sequence.max_norm, 0, 1e9), .min_open = true,
     NULLABLE(sequence.has_max_norm), BY_DEFAULT(null),
     .text = "The largest norm of the gradient over all layers; a longer gradient is scaled down to it. "
             "null: no limit."},

    {"/running_reward", REINFORCE, JOB_OBJECT,
     .text = "The smoothed reward: weight * new + (1 - weight) * old."},
    {"/running_reward/of", REINFORCE, ENUM(running_reward.of, "min", "mean"), BY_DEFAULT("mean"),
     .text = "The new value: the smallest or the mean reward of the environments' first episodes."},
    {"/running_reward/weight", REINFORCE, NUMBER(running_reward.weight, 0, 1), .min_open = true,
     BY_DEFAULT(0.5), .text = "The weight of the new value."},

    {"/data", SERVER, JOB_OBJECT, .text = "The images and their labels."},
    {"/data/kind", SERVER, ENUM(data.kind, "synthetic", "idx", "cifar", "folder", "", "class"),
     BY_DEFAULT("synthetic"),
     .text = "synthetic: random numbers, no files. idx: the files of the MNIST family, plain or gzipped. "
             "cifar: the binary version of CIFAR-10 or CIFAR-100. folder: JPEG and PNG files in train/CLASS/ "
             "and, held out, in test/CLASS/. class: the samples of /trainers/class, which says how many "
             "there are."},
    {"/data/path", SERVER, PATH(data.path, 0), BY_DEFAULT(""),
     .text =
         "The folder with the files. A relative path begins in the folder in which the daemon was started."},
    {"/data/size", SERVER, INTEGER(data.size, 1, 4096), BY_DEFAULT(64), .unit = "pixels",
     .text = "The height and the width of the images that the model sees."},
    {"/data/fit", SERVER, ENUM(data.fit, "pad", "resize"), BY_DEFAULT("resize"),
     .text = "How an image of another size is brought to /data/size. pad: with zeros around it. resize: by "
             "interpolation."},
    {"/data/channels", SERVER, INTEGER(data.channels, 1, 3), .bounds_only = true, BY_DEFAULT(3),
     .text = "The channels of the images that the model sees. With 3, a gray image is copied to each "
             "channel; with 1, a colored image becomes gray."},
    {"/data/mean", SERVER, NUMBER(data.mean, 0, 1), .elements = JOB_CHANNELS_MAX, BY_DEFAULT([0]),
     .text = "The mean that is subtracted from the pixels, which lie in [0, 1]: one number for all channels, "
             "or one for each of 3."},
    {"/data/std", SERVER, NUMBER(data.std, 1e-6, 1), .elements = JOB_CHANNELS_MAX, BY_DEFAULT([1]),
     .text = "The standard deviation by which the difference is divided: one number for all channels, or one "
             "for each of 3."},
    {"/data/crop", SERVER, INTEGER(data.crop, 0, 64), BY_DEFAULT(0), .unit = "pixels",
     .text = "In training, the width of a margin of zeros around the image, out of which a random part of "
             "the image's size is cut."},
    {"/data/flip", SERVER, BOOLEAN(data.flip), BY_DEFAULT(false),
     .text = "In training, whether an image is mirrored with probability 1/2."},
    {"/data/limit", SERVER, INTEGER(data.limit, 1, 1e9), NULLABLE(data.has_limit), BY_DEFAULT(null),
     .unit = "samples", .text = "The number of training samples, the first ones of the files. null: all."},

    {"/data", PARALLEL, JOB_OBJECT, .text = "The tokens."},
    {"/data/kind", PARALLEL, ENUM(data.kind, "synthetic", "", "", "", "text"), BY_DEFAULT("synthetic"),
     .text = "synthetic: random tokens, no file. text: the words of a file, each to be predicted from the "
             "words before it."},
    {"/data/path", PARALLEL, PATH(data.path, 0), BY_DEFAULT(""),
     .text =
         "The text, a file of UTF-8. A relative path begins in the folder in which the daemon was started."},
    {"/data/steps", PARALLEL, INTEGER(sequence.steps, 1, 65536), BY_DEFAULT(5), .unit = "tokens",
     .text = "The number of tokens of a column in one update, through which the gradient goes back."},
    {"/data/updates", PARALLEL, INTEGER(sequence.updates, 1, 1e9), BY_DEFAULT(5),
     .text = "The number of updates in an epoch of synthetic data."},
    {"/data/minimum_count", PARALLEL, INTEGER(sequence.minimum_count, 1, 1e9), BY_DEFAULT(1),
     .text = "Of a text: a word that occurs less often in the training lines becomes <unk>."},
    {"/data/held_out", PARALLEL, NUMBER(sequence.held_out, 0, 1), .max_open = true, BY_DEFAULT(0.1),
     .text = "Of a text: the share of its lines, the last ones, that are held out for evaluations."},

    {"/evaluation", SERVER, JOB_OBJECT, .text = "Loss and accuracy on the held-out data."},
    {"/evaluation/every", SERVER, INTEGER(evaluation.every, 1, 1e6), NULLABLE(evaluation.has_every),
     BY_DEFAULT(1), .unit = "epochs",
     .text = "The number of epochs from one evaluation to the next. null: no evaluations. Synthetic data has "
             "nothing held out, nor has a folder without test/, nor a class without held_out_size."},
    {"/evaluation/batch", SERVER, INTEGER(evaluation.batch, 1, 65536), BY_DEFAULT(100), .unit = "samples",
     .text = "The number of samples in a forward pass."},

    {"/evaluation", PARALLEL, JOB_OBJECT, .text = "Loss and perplexity on the held-out text."},
    {"/evaluation/every", PARALLEL, INTEGER(evaluation.every, 1, 1e6), NULLABLE(evaluation.has_every),
     BY_DEFAULT(1), .unit = "epochs",
     .text = "The number of epochs from one evaluation to the next. null: no evaluations. Synthetic data has "
             "nothing held out."},
    {"/evaluation/batch", PARALLEL, INTEGER(evaluation.batch, 1, 65536), BY_DEFAULT(10), .unit = "columns",
     .text = "The number of columns into which the held-out text is cut."},

    {"/evaluation", STEPWISE, JOB_OBJECT,
     .text = "Episodes that the policy plays apart from training, in environments of their own: those in C "
             "are in the agent's process, those in Python in the observers'. Their first states follow from "
             "the job's seed. They are the same in each evaluation, and training sees none of them."},
    {"/evaluation/every", STEPWISE, INTEGER(evaluation.every, 1, 1e6), NULLABLE(evaluation.has_every),
     BY_DEFAULT(null), .unit = "updates",
     .text = "The number of updates from one evaluation to the next. The one that ends the job by /stop is "
             "evaluated, too. null: no evaluations."},
    {"/evaluation/episodes", STEPWISE, INTEGER(evaluation.episodes, 1, 10000), BY_DEFAULT(10),
     .text = "The number of episodes, which are played all at once."},
    {"/evaluation/steps", STEPWISE, INTEGER(evaluation.steps, 1, 1e9), BY_DEFAULT(100000),
     .text = "The number of steps at which an episode that has not ended is cut."},
    {"/evaluation/deterministic", STEPWISE, BOOLEAN(evaluation.deterministic), BY_DEFAULT(true),
     .text =
         "Whether the most probable actions are taken, and of floats the means. false: actions are drawn."},

    {"/stop", AGENT, JOB_OBJECT, .text = "When the job ends: at the first limit that is reached."},
    {"/stop/episodes", REINFORCE, INTEGER(stop.episodes, 1, 1e9), NULLABLE(stop.has_episodes), BY_DEFAULT(10),
     .unit = "episodes", .text = "The job ends after this number of episodes."},
    {"/stop/running_reward", REINFORCE, NUMBER(stop.running_reward, -DBL_MAX, DBL_MAX),
     NULLABLE(stop.has_running_reward), BY_DEFAULT(null),
     .text = "The job ends, solved, when the running reward is above this number."},

    {"/stop/steps", STEPWISE, INTEGER(stop.steps, 1, 1e15), BY_DEFAULT(1000000), .unit = "steps",
     .text = "The job ends after the update that reaches this number of steps of all environments together."},

    {"/stop/evaluation_reward", STEPWISE, NUMBER(stop.evaluation_reward, -DBL_MAX, DBL_MAX),
     NULLABLE(stop.has_evaluation_reward), BY_DEFAULT(null),
     .text = "The job ends, solved, when the mean reward of an evaluation is this number or more."},

    {"/stop", SERVER, JOB_OBJECT, .text = "When the job ends: at the first limit that is reached."},
    {"/stop/updates", SERVER, INTEGER(stop.updates, 1, 1e9), NULLABLE(stop.has_updates), BY_DEFAULT(6),
     OTHERWISE(null, IS_SET("/stop/epochs")), .unit = "updates",
     .text = "The job ends after this number of updates."},
    {"/stop/epochs", SERVER, INTEGER(stop.epochs, 1, 1e6), NULLABLE(stop.has_epochs), BY_DEFAULT(null),
     .unit = "epochs", .text = "The job ends after this number of passes over the training samples."},

    {"/stop", PARALLEL, JOB_OBJECT, .text = "When the job ends: at the first limit that is reached."},
    {"/stop/updates", PARALLEL, INTEGER(stop.updates, 1, 1e9), NULLABLE(stop.has_updates), BY_DEFAULT(null),
     .unit = "updates", .text = "The job ends after this number of updates."},
    {"/stop/epochs", PARALLEL, INTEGER(stop.epochs, 1, 1e6), NULLABLE(stop.has_epochs), BY_DEFAULT(10),
     OTHERWISE(null, IS_SET("/stop/updates")), .unit = "epochs",
     .text = "The job ends after this number of passes over the training text; an epoch of synthetic data "
             "has /data/updates updates."},

    {"/log", ANY, JOB_OBJECT, .text = "The logs."},
    {"/log/every", ANY, INTEGER(log.every, 1, 1e6), BY_DEFAULT(1),
     .text = "The number of episodes or updates from one line of episodes.log to the next. The one that ends "
             "the job by /stop has a line, too. episodes.jsonl has a line for each. In a model-parallel job "
             "both logs have the same lines, each with the mean loss since the last line."},
    {"/log/tensorboard", ANY, BOOLEAN(log.tensorboard), BY_DEFAULT(false),
     .text = "Whether the figures of episodes.jsonl are also written for TensorBoard: to event files in the "
             "run directory's folder tensorboard, under Stable-Baselines3's tags."},
    {"/log/profile", ANY, BOOLEAN(log.profile), BY_DEFAULT(false),
     .text = "Whether the workers measure where their time goes, as with `coalesced run --profile`. At the "
             "run's end profile.txt has a table and profile.json a trace for Perfetto. A change counts from "
             "the next start on."},

    {"/checkpoint", ANY, JOB_OBJECT, .text = "The checkpoints, from which a run can be resumed."},
    {"/checkpoint/every", AGENT, INTEGER(checkpoint.every, 1, 1e9), NULLABLE(checkpoint.has_every),
     BY_DEFAULT(null), .unit = "episodes",
     .text = "The number of episodes from one checkpoint to the next. The last episode always makes one."},
    {"/checkpoint/every_s", AGENT, NUMBER(checkpoint.every_s, 0, 1e6), .min_open = true,
     NULLABLE(checkpoint.has_every_s), BY_DEFAULT(2), .unit = "seconds",
     .text = "The time from one checkpoint to the next, in addition to /checkpoint/every."},
    {"/checkpoint/every", TRAINERS, INTEGER(checkpoint.every, 1, 1e9), NULLABLE(checkpoint.has_every),
     BY_DEFAULT(100), .unit = "updates",
     .text = "The number of updates from one checkpoint to the next. The last update always makes one."},
    {"/checkpoint/every_s", TRAINERS, NUMBER(checkpoint.every_s, 0, 1e6), .min_open = true,
     NULLABLE(checkpoint.has_every_s), BY_DEFAULT(null), .unit = "seconds",
     .text = "The time from one checkpoint to the next, in addition to /checkpoint/every."},
    {"/checkpoint/keep", ANY, INTEGER(checkpoint.keep, 1, 1000), BY_DEFAULT(3),
     .text = "The number of checkpoints that are kept, the newest ones."},
    {"/checkpoint/best", AGENT, BOOLEAN(checkpoint.best), BY_DEFAULT(false),
     .text = "Whether the checkpoint with the highest running reward is also kept as checkpoints/best. The "
             "checkpoints by /checkpoint/every and the one at the job's end compete. Where /checkpoint/every "
             "is null, all compete, so the clock has a say in which is kept. With /evaluation/every it is "
             "the checkpoint with the highest mean reward of an evaluation, and an evaluation that is the "
             "best so far makes a checkpoint."},
    {"/checkpoint/best", TRAINERS, BOOLEAN(checkpoint.best), BY_DEFAULT(false),
     .text =
         "Whether the checkpoint with the highest accuracy or the lowest perplexity on held-out data is also "
         "kept as checkpoints/best. An epoch whose evaluation is the best so far makes a checkpoint."},

    {"/supervise", ANY, JOB_OBJECT, .text = "How the supervisor watches the worker processes."},
    {"/supervise/hang_s", ANY, NUMBER(supervise.hang_s, 1, 3600), BY_DEFAULT(10), .unit = "seconds",
     .text = "The time without a heartbeat after which a worker is killed. A worker that starts gets 30 s "
             "more: it loads libraries and finds its peers."},
    {"/supervise/restart", ANY, BOOLEAN(supervise.restart), BY_DEFAULT(true),
     .text = "Whether a worker that dies or is killed starts again. An observer, or a trainer of a "
             "parameter-server job, starts again alone; after the death of any other worker all workers "
             "start again from the newest checkpoint. false: the death of a worker ends the job."},

    {"/hosts", ANY, JOB_OBJECT,
     .text = "How a job runs on several hosts, one supervisor on each. Host 0 leads: it writes the logs and "
             "checkpoints. A job on one host ignores all this."},
    {"/hosts/observers", AGENT, ENUM(hosts.clients, "even", "others"), BY_DEFAULT("even"),
     .text = "Where observers run. even: evenly on all hosts. others: evenly on all but the leader, which "
             "has the agent."},
    {"/hosts/trainers", TRAINERS, ENUM(hosts.clients, "even", "others"), BY_DEFAULT("even"),
     .text = "Where trainers run. even: evenly on all hosts. others: evenly on all but the leader."},
    {"/hosts/servers", TRAINERS, ENUM(hosts.servers, "leader", "even"), BY_DEFAULT("leader"),
     .text = "Where servers run. leader: on the leader. even: evenly on all hosts, for a model too large for "
             "one; the run directory must then be on a file system that all hosts share."},
    {"/hosts/patience_s", ANY, NUMBER(hosts.patience_s, 1, 86400), BY_DEFAULT(60), .unit = "seconds",
     .text = "How long the leader waits for the other hosts before the job begins without those that are "
             "missing, and how long another host looks for a leader that it has lost."},
    {"/hosts/requeue", ANY, BOOLEAN(hosts.requeue), BY_DEFAULT(true),
     .text = "Whether, under Slurm, a host that has lost the leader asks for the job to be put back into the "
             "queue. The next start goes on from the newest checkpoint."},
    {"/listen", ANY, NAME(hosts.listen), NULLABLE(hosts.has_listen),
     .pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$",
     .words = "the name of a network interface, or an IPv4 address", BY_DEFAULT(null),
     .text = "The network interface, or its address, at which a host can be reached from the others. null: "
             "all of them; the others try each."},

    {"/metrics", ANY, JOB_OBJECT,
     .text = "What a running job shows beside `coalesced status`. Another value may be given when a run is "
             "resumed."},
    {"/metrics/listen", ANY, PATH(metrics.listen, 1), NULLABLE(metrics.has_listen), BY_DEFAULT(null),
     .text = "Where a page for browsers (/), metrics (/metrics) and the status (/status.json) are served by "
             "HTTP: an IP address and a port, such as 127.0.0.1:9477, or the path of a socket, with a slash. "
             "Metrics are in Prometheus' text format, or in OpenMetrics where the request's Accept header "
             "prefers it. An address that others can reach needs /metrics/token. While the address is in "
             "use, the run goes on without its page. `coalesced page` serves a page of all runs. null: "
             "nowhere."},
    {"/metrics/token", ANY, PATH(metrics.token, 1), NULLABLE(metrics.has_token), BY_DEFAULT(null),
     .text = "A file whose first line is a token: ASCII characters without spaces. Every request must then "
             "show it, as a bearer token or as the password of Basic authentication. Only with a token the "
             "page has buttons, which stop the run or take a checkpoint: POST to /stop and /checkpoint."},
    {"/metrics/textfile", ANY, PATH(metrics.textfile, 1), NULLABLE(metrics.has_textfile), BY_DEFAULT(null),
     .text = "A file for the textfile collector of Prometheus' node_exporter, with a name that ends in "
             ".prom. It is replaced every 15 seconds, whole, and removed when the run ends."},
};
const size_t job_key_count = sizeof job_keys / sizeof job_keys[0];
_Static_assert(JOB_NAME_BYTES == 64 && JOB_TRAINERS_MAX == 256 && JOB_SERVERS_MAX == 16,
               "the patterns' limits");
_Static_assert(sizeof job_keys / sizeof job_keys[0] <= JOB_KEYS_MAX, "JOB_KEYS_MAX bounds arrays elsewhere");

/* ---- look-ups ---- */

const char *job_key_name(const struct job_key *key)
{
    return strrchr(key->pointer, '/') + 1;
}

const struct job_key *job_key_at(unsigned kinds, const char *pointer)
{
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & kinds) != 0 && strcmp(job_keys[i].pointer, pointer) == 0)
            return &job_keys[i];
    return NULL;
}

bool job_key_is_member(const struct job_key *key, const char *parent)
{
    const size_t length = strlen(parent);
    return strlen(key->pointer) - strlen(job_key_name(key)) == length + 1 &&
           memcmp(key->pointer, parent, length) == 0;
}

bool job_key_ignored(const char *name)
{
    return name[0] == '_' || strcmp(name, "$schema") == 0;
}

const char *job_kind_name(int kind)
{
    return job_key_at(JOB_KINDS_ALL, "/kind")->names[kind < JOB_VARIANT_PPO ? kind : JOB_REINFORCE];
}

/* The variants ppo and a2c have the order of enum job_algorithm. */
const char *job_variant_algorithm(int variant)
{
    if (variant != JOB_REINFORCE && variant < JOB_VARIANT_PPO)
        return NULL;
    const int algorithm =
        variant == JOB_REINFORCE ? JOB_ALGORITHM_REINFORCE : JOB_ALGORITHM_PPO + variant - JOB_VARIANT_PPO;
    return job_key_at(JOB_KINDS_OF(JOB_REINFORCE), "/algorithm/name")->names[algorithm];
}

int job_variant(const struct job *job)
{
    if (job->kind != JOB_REINFORCE || job->algorithm.name == JOB_ALGORITHM_REINFORCE)
        return job->kind;
    return JOB_VARIANT_PPO + job->algorithm.name - JOB_ALGORITHM_PPO;
}
