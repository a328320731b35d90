/* Gradient steps of RLtools' SAC and TD3, in CPU milliseconds, on one thread (test/bench/peer/fit_rltools).
 *
 *     fit [NAME]        NAME: only cases whose name holds it
 *
 * The cases are those of test/bench/bench_fit.c; RLtools has no DQN. The batch lies in memory, as in
 * bench_fit. A step is the training part of RLtools' own loop: the noise, both critics, the targets, and the
 * actor. RLtools computes the next actions and both targets' values once for each critic. */
#include <rl_tools/operations/cpu_mux.h>

#include <rl_tools/nn/optimizers/adam/instance/operations_generic.h>

#include <rl_tools/nn/operations_cpu_mux.h>

#include <rl_tools/nn/layers/sample_and_squash/operations_generic.h>
#include <rl_tools/nn/layers/td3_sampling/operations_generic.h>
#include <rl_tools/nn_models/mlp/operations_generic.h>
#include <rl_tools/nn_models/sequential/operations_generic.h>

#include <rl_tools/nn/optimizers/adam/operations_generic.h>

#include <rl_tools/rl/environments/environments.h>
#include <rl_tools/rl/environments/operations_generic.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace rlt = rl_tools;

using DEVICE = rlt::devices::DEVICE_FACTORY<>;
using RNG = DEVICE::SPEC::RANDOM::ENGINE<>;
using TI = DEVICE::index_t;
using POLICY = rlt::numeric_types::Policy<float>;

static_assert(DEVICE::DEVICE_ID == rlt::devices::DeviceId::CPU_MKL, "RLtools computes without MKL");

constexpr TI FILLED = 1000; /* transitions in the buffer */
constexpr int ROUNDS = 5;
constexpr double ROUND_MS = 200;

/* Random observations and rewards. An episode has 100 steps. */
template <TI INPUTS, TI COMPONENTS> struct Noise : rlt::rl::environments::Environment<float, TI> {
    using T = float;
    using TI = ::TI;
    struct Parameters {
    };
    struct State {
        static constexpr TI DIM = 1;
    };
    struct Observation {
        static constexpr TI DIM = INPUTS;
    };
    using ObservationPrivileged = Observation;
    static constexpr TI N_AGENTS = 1, ACTION_DIM = COMPONENTS, EPISODE_STEP_LIMIT = 100;
};

namespace rl_tools
{
#define NOISE Noise<INPUTS, COMPONENTS>
template <typename DEVICE, TI INPUTS, TI COMPONENTS> void malloc(DEVICE &, const NOISE &)
{
}
template <typename DEVICE, TI INPUTS, TI COMPONENTS> void free(DEVICE &, const NOISE &)
{
}
template <typename DEVICE, TI INPUTS, TI COMPONENTS> void init(DEVICE &, const NOISE &)
{
}
template <typename DEVICE, TI INPUTS, TI COMPONENTS, typename RNG>
void sample_initial_parameters(DEVICE &, const NOISE &, typename NOISE::Parameters &, RNG &)
{
}
template <typename DEVICE, TI INPUTS, TI COMPONENTS>
void initial_parameters(DEVICE &, const NOISE &, typename NOISE::Parameters &)
{
}
template <typename DEVICE, TI INPUTS, TI COMPONENTS, typename RNG>
void sample_initial_state(DEVICE &, const NOISE &, typename NOISE::Parameters &, typename NOISE::State &,
                          RNG &)
{
}
template <typename DEVICE, TI INPUTS, TI COMPONENTS, typename ACTION, typename RNG>
float step(DEVICE &, const NOISE &, typename NOISE::Parameters &, const typename NOISE::State &,
           const Matrix<ACTION> &, typename NOISE::State &, RNG &)
{
    return 1;
}
template <typename DEVICE, TI INPUTS, TI COMPONENTS, typename ACTION, typename RNG>
float reward(DEVICE &, const NOISE &, typename NOISE::Parameters &, const typename NOISE::State &,
             const Matrix<ACTION> &, const typename NOISE::State &, RNG &rng)
{
    return random::uniform_real_distribution(typename DEVICE::SPEC::RANDOM(), -1.0f, 1.0f, rng);
}
template <typename DEVICE, TI INPUTS, TI COMPONENTS, typename OBSERVATION, typename RNG>
void observe(DEVICE &, const NOISE &, const typename NOISE::Parameters &, const typename NOISE::State &,
             const typename NOISE::Observation &, Matrix<OBSERVATION> &observation, RNG &rng)
{
    for (TI i = 0; i < INPUTS; i++)
        set(observation, 0, i,
            random::uniform_real_distribution(typename DEVICE::SPEC::RANDOM(), -1.0f, 1.0f, rng));
}
template <typename DEVICE, TI INPUTS, TI COMPONENTS, typename RNG>
bool terminated(DEVICE &, const NOISE &, typename NOISE::Parameters &, const typename NOISE::State &, RNG &)
{
    return false;
}
#undef NOISE
} // namespace rl_tools

/* The loops call the environment's functions by qualified names, so these stand first. */
#include <rl_tools/rl/algorithms/sac/loop/core/config.h>
#include <rl_tools/rl/algorithms/sac/loop/core/operations_generic.h>
#include <rl_tools/rl/algorithms/td3/loop/core/config.h>
#include <rl_tools/rl/algorithms/td3/loop/core/operations_generic.h>

namespace sac = rlt::rl::algorithms::sac;
namespace td3 = rlt::rl::algorithms::td3;

template <typename ENVIRONMENT, TI WIDTH, TI ROWS>
struct Sac : sac::loop::core::DefaultParameters<POLICY, TI, ENVIRONMENT> {
    struct SAC_PARAMETERS : sac::DefaultParameters<POLICY, TI, ENVIRONMENT::ACTION_DIM> {
        static constexpr TI ACTOR_BATCH_SIZE = ROWS, CRITIC_BATCH_SIZE = ROWS;
        static constexpr float ALPHA = 1;
    };
    static constexpr TI ACTOR_HIDDEN_DIM = WIDTH, CRITIC_HIDDEN_DIM = WIDTH;
    /* All of the loop's steps fill the buffer. */
    static constexpr TI N_WARMUP_STEPS = FILLED, N_WARMUP_STEPS_CRITIC = FILLED,
                        N_WARMUP_STEPS_ACTOR = FILLED;
    static constexpr TI STEP_LIMIT = FILLED, REPLAY_BUFFER_CAP = FILLED;
};

template <typename ENVIRONMENT, TI ROWS>
struct Td3 : td3::loop::core::DefaultParameters<POLICY, TI, ENVIRONMENT> {
    struct TD3_PARAMETERS : td3::DefaultParameters<POLICY, TI> {
        static constexpr TI ACTOR_BATCH_SIZE = ROWS, CRITIC_BATCH_SIZE = ROWS;
    };
    static constexpr TI N_WARMUP_STEPS = FILLED, N_WARMUP_STEPS_CRITIC = FILLED,
                        N_WARMUP_STEPS_ACTOR = FILLED;
    static constexpr TI STEP_LIMIT = FILLED, REPLAY_BUFFER_CAP = FILLED;
};

/* TD3's networks with hidden layers of 400 and 300 units: RLtools' MLP has one width. */
template <typename TYPE, typename, typename ENVIRONMENT, typename PARAMETERS, bool DYNAMIC>
struct Layers400x300 {
    template <TI WIDTH, rlt::nn::activation_functions::ActivationFunction ACTIVATION>
    using Dense = rlt::nn::layers::dense::BindConfiguration<
        rlt::nn::layers::dense::Configuration<TYPE, TI, WIDTH, ACTIVATION>>;
    template <typename CONTENT, typename NEXT = rlt::nn_models::sequential::OutputModule>
    using Module = rlt::nn_models::sequential::Module<CONTENT, NEXT>;
    template <typename LAST>
    using Chain = Module<Dense<400, rlt::nn::activation_functions::RELU>,
                         Module<Dense<300, rlt::nn::activation_functions::RELU>, LAST>>;
    template <typename CAPABILITY, typename CHAIN, TI INPUTS>
    using Model = rlt::nn_models::sequential::Build<
        CAPABILITY, CHAIN, rlt::tensor::Shape<TI, 1, PARAMETERS::TD3_PARAMETERS::ACTOR_BATCH_SIZE, INPUTS>>;
    struct SAMPLING : rlt::nn::layers::td3_sampling::DefaultParameters<TYPE> {
        static constexpr float STD = PARAMETERS::EXPLORATION_NOISE;
    };
    using ACTOR = Chain<Module<Dense<ENVIRONMENT::ACTION_DIM, rlt::nn::activation_functions::TANH>,
                               Module<rlt::nn::layers::td3_sampling::BindConfiguration<
                                   rlt::nn::layers::td3_sampling::Configuration<TYPE, TI, SAMPLING>>>>>;
    using CRITIC = Chain<Module<Dense<1, rlt::nn::activation_functions::IDENTITY>>>;
    using GRADIENT = rlt::nn::capability::Gradient<rlt::nn::parameters::Adam, DYNAMIC>;
    using FORWARD = rlt::nn::capability::Forward<DYNAMIC>;
    static constexpr TI SEEN = ENVIRONMENT::Observation::DIM, JUDGED = SEEN + ENVIRONMENT::ACTION_DIM;
    using ACTOR_TYPE = Model<GRADIENT, ACTOR, SEEN>;
    using ACTOR_TARGET_TYPE = Model<FORWARD, ACTOR, SEEN>;
    using CRITIC_TYPE = Model<GRADIENT, CRITIC, JUDGED>;
    using CRITIC_TARGET_TYPE = Model<FORWARD, CRITIC, JUDGED>;
    using OPTIMIZER = rlt::nn::optimizers::Adam<rlt::nn::optimizers::adam::Specification<
        TYPE, TI, typename PARAMETERS::OPTIMIZER_PARAMETERS, DYNAMIC>>;
};

template <typename CONFIG> void train(DEVICE &device, sac::loop::core::State<CONFIG> &s, TI)
{
    rlt::randn(device, s.action_noise_critic, s.rng);
    for (int i = 0; i < 2; i++)
        rlt::train_critic(device, s.actor_critic, s.actor_critic.critics[i], s.critic_batch,
                          s.actor_critic.critic_optimizers[i], s.actor_target_buffers[i], s.critic_buffers[i],
                          s.critic_target_buffers[i], s.critic_training_buffers[i], s.action_noise_critic,
                          s.rng);
    rlt::update_critic_targets(device, s.actor_critic);
    rlt::randn(device, s.action_noise_actor, s.rng);
    rlt::train_actor(device, s.actor_critic, s.critic_batch, s.actor_critic.actor_optimizer,
                     s.actor_buffers[0], s.critic_buffers[0], s.actor_training_buffers, s.action_noise_actor,
                     s.rng);
}

template <typename CONFIG> void train(DEVICE &device, td3::loop::core::State<CONFIG> &s, TI step)
{
    auto noise = rlt::matrix_view(device, s.critic_training_buffers.target_next_action_noise);
    rlt::target_action_noise(device, s.actor_critic, noise, s.rng);
    for (int i = 0; i < 2; i++)
        rlt::train_critic(device, s.actor_critic, s.actor_critic.critics[i], s.critic_batch,
                          s.actor_critic.critic_optimizers[i], s.actor_buffers[i], s.actor_target_buffers[i],
                          s.critic_buffers[i], s.critic_target_buffers[i], s.critic_training_buffers, s.rng);
    if (step % 2 == 0)
        return; /* TD3's delay */
    rlt::update_critic_targets(device, s.actor_critic);
    rlt::train_actor(device, s.actor_critic, s.critic_batch, s.actor_critic.actor_optimizer,
                     s.actor_buffers[0], s.critic_buffers[0], s.actor_training_buffers, s.rng);
    rlt::update_actor_target(device, s.actor_critic);
}

static double cpu_ms()
{
    timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return used.tv_sec * 1e3 + used.tv_nsec * 1e-6;
}

/* Prints the case's line, as bench_fit does. */
template <typename CONFIG> void measure(const char *name, const char *wanted)
{
    if (std::strstr(name, wanted) == nullptr)
        return;
    static typename CONFIG::template State<CONFIG> state;
    DEVICE device;
    rlt::init(device);
    rlt::malloc(device, state);
    rlt::init(device, state, 1);
    for (TI i = 0; i < FILLED; i++)
        rlt::step(device, state);
    rlt::gather_batch(device, state.off_policy_runner, state.critic_batch, state.rng);
    double ms[ROUNDS];
    for (double &mean : ms) {
        const double begin = cpu_ms();
        TI steps = 0;
        do
            train(device, state, steps++);
        while (cpu_ms() - begin < ROUND_MS || steps % 2 != 0);
        mean = (cpu_ms() - begin) / steps;
    }
    std::sort(ms, ms + ROUNDS);
    std::printf("%-28s %8.3f ms [%.3f %.3f]\n", name, ms[ROUNDS / 2], ms[0], ms[ROUNDS - 1]);
    rlt::free(device, state);
}

template <TI INPUTS, TI COMPONENTS, TI WIDTH, TI ROWS>
using SAC = sac::loop::core::Config<POLICY, TI, RNG, Noise<INPUTS, COMPONENTS>,
                                    Sac<Noise<INPUTS, COMPONENTS>, WIDTH, ROWS>>;
template <TI INPUTS, TI COMPONENTS, TI ROWS>
using TD3 = td3::loop::core::Config<POLICY, TI, RNG, Noise<INPUTS, COMPONENTS>,
                                    Td3<Noise<INPUTS, COMPONENTS>, ROWS>, Layers400x300>;

int main(int argc, char **argv)
{
    const char *wanted = argc < 2 ? "" : argv[1];
    measure<SAC<17, 6, 256, 256>>("sac 17/6 256x256 rows 256", wanted);
    measure<SAC<3, 1, 256, 256>>("sac 3/1 256x256 rows 256", wanted);
    measure<SAC<2, 1, 64, 512>>("sac 2/1 64x64 rows 512", wanted);
    measure<TD3<17, 6, 256>>("td3 17/6 400x300 rows 256", wanted);
}
