/* Unknown keys of a job file: what their message suggests. */
#include "test/worker/job/job_fixture.h"
#include "test/workplace.h"

/* A name of Stable-Baselines3 or CleanRL leads to the key, where the job has that key. */
START_TEST(names_of_other_programs_are_known)
{
    static const struct {
        const char *override, *problem;
    } cases[] = {
        {"/policy/net_arch=[64,64]", "unknown key; here it is /policy/hidden"},
        {"/policy/activation_fn=tanh", "unknown key; here it is /policy/activation"},
        {"/algorithm/anneal_lr=true", "unknown key; here it is /algorithm/learning_rate_schedule"},
        {"/algorithm/clip_coef=0.1", "unknown key; here it is /algorithm/clip_range"},
        {"/algorithm/clip_vloss=true", "unknown key; here it is /algorithm/clip_range_vf"},
        {"/evaluation/eval_freq=10", "unknown key; here it is /evaluation/every"},
        {"/algorithm/n_envs=8", "unknown key; here it is /observers/environments"},
        {"/observers/num_envs=8", "unknown key; here it is /observers/environments"},
        {"/evaluation/n_eval_episodes=5", "unknown key; here it is /evaluation/episodes"},
        {"/algorithm/n_timesteps=5", "unknown key; here it is /stop/steps"},
        {"/total_timesteps=5", "unknown key; here it is /stop/steps"},
        {"/algorithm/num_steps=5", "unknown key; here it is /algorithm/n_steps"},
        {"/algorithm/norm_adv=true", "unknown key; here it is /algorithm/normalize_advantage"},
        {"/algorithm/update_epochs=4", "unknown key; here it is /algorithm/n_epochs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_override(minimal_ppo, cases[i].override, cases[i].problem);
    expect_override(minimal_reinforce, "/total_timesteps=5", "unknown key");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("job_suggestions");
    TCase *core = tcase_create("core");
    tcase_add_test(core, names_of_other_programs_are_known);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
