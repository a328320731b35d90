/* The environment that RLtools compiles into its training loop (test/bench/peer/ppo_rltools.py): its own
 * Pendulum. */
#include <rl_tools/rl/environments/pendulum/operations_cpu.h>

template <typename T, typename TI>
using ENVIRONMENT_FACTORY =
    rl_tools::rl::environments::Pendulum<rl_tools::rl::environments::pendulum::Specification<T, TI>>;
