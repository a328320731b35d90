/* The program's entry: argv in, exit code out. */
#include "daemon/commands/commands.h"
#include "kernels/base/denormals.h"
#include "worker/job/job.h"
#include "worker/link.h"
#include "worker/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

static const char usage[] =
    "coalesced " COALESCED_VERSION ", a training daemon\n"
    "\n"
    "  coalesced run JOB.json [--set /POINTER=VALUE]... [--run-dir DIR] [--resume]\n"
    "            [--profile] [--node I/N --leader HOST:PORT --keys DIR]\n"
    "      Train; with --node as host I of N.\n"
    "  coalesced keygen DIR [--hosts N]\n"
    "      Make the keys by which the hosts of a job know each other.\n"
    "  coalesced join tcp://HOST:PORT --keys DIR --observers N | --trainers N\n"
    "      Add N observers or trainers to a running job, on this host, until it stops.\n"
    "  coalesced check JOB.json [--set /POINTER=VALUE]... [--json]\n"
    "      Check the job and the files that it names; print what is wrong, else nothing.\n"
    "  coalesced evaluate RUN | CHECKPOINT [JOB.json] [--set /POINTER=VALUE]... [--episodes N]\n"
    "      Print accuracy or perplexity, and loss, on held-out data; or the rewards of a policy. A\n"
    "      run means its newest checkpoint; without JOB.json, the job of the run is taken.\n"
    "  coalesced generate RUN | CHECKPOINT [--words N] [--seed S] [--temperature T]\n"
    "      Print text that a language model writes.\n"
    "  coalesced play RUN | CHECKPOINT [--episodes N] [--sample]\n"
    "            [--render text | FILE.gif | FILE.png]\n"
    "      Let a policy play, and show it.\n"
    "  coalesced export RUN | CHECKPOINT --onnx FILE\n"
    "      Write a policy or a ResNet as an ONNX model.\n"
    "  coalesced try PLUGIN | NAME [--name NAME] [--options JSON] [--steps N] [--seed S] [--limit-s N]\n"
    "      Check that a plug-in's environments, or a built-in one, keep the contract of environment.h.\n"
    "  coalesced status [RUN] [--watch] [--json]\n"
    "      Show what a run and its workers are doing, or how it ended; without RUN, all runs of this\n"
    "      host that go on.\n"
    "  coalesced list [FOLDER]... [--running] [--json]\n"
    "      Print a line for each run that goes on, and for each that lies below the folders (default:\n"
    "      runs, $STATE_DIRECTORY, /var/lib/coalesced, /var/lib/private/coalesced, and where this user's\n"
    "      running runs lie); with --running only those that go on.\n"
    "  coalesced stop RUN\n"
    "      Have the run finish its round and end, and wait for that.\n"
    "  coalesced clean [FOLDER]... [--older-than AGE] [--all] [--dry-run]\n"
    "      Remove the checkpoints, but the best, of previous runs (RUN/previous-N).\n"
    "  coalesced page [FOLDER]... [--listen ADDRESS] [--token FILE]\n"
    "      Serve a page of all runs, also of those that have ended, to compare them in a browser.\n"
    "  coalesced plot RUN...\n"
    "      Draw the curves of runs, as median and band over the seeds of each job. (*)\n"
    "  coalesced sweep JOB.json --over /POINTER=VALUES...\n"
    "      Run the job with each combination of values; one table and one figure of all runs. (*)\n"
    "  coalesced forward RUN --mlflow EXPERIMENT | --wandb PROJECT\n"
    "      Send the numbers of a run, as its log grows, to MLflow or Weights & Biases. (*)\n"
    "  coalesced schema [man | pointers]\n"
    "      Print the JSON schema of job files; or their manual, a page of mdoc(7); or the pointers of\n"
    "      their keys.\n"
    "  coalesced --help | --version\n"
    "\n"
    "  (*) A program in Python, with options of its own: coalesced NAME --help.\n"
    "\n"
    "  --set /POINTER=VALUE  override a key of the job; VALUE is JSON, else a string\n"
    "  --run-dir DIR         where the run's files go (default: runs/NAME, or\n"
    "                        $STATE_DIRECTORY/NAME where that is set)\n"
    "  --resume              continue the run from its newest sound checkpoint; begin where there is none\n"
    "  --profile             measure where each worker's time goes; profile.txt and profile.json at the end\n"
    "  --node I/N            this host's number, from 0, and the number of hosts; host 0 leads. Under\n"
    "                        srun or mpiexec the hosts find each other without\n"
    "  --leader HOST:PORT    where host 0 is; on host 0 itself: the port\n"
    "  --keys DIR            the folder that keygen has made, or the files hosts and host-I.secret of it\n"
    "  --hosts N             how many hosts get a key (default: 64)\n"
    "  --episodes N          how many episodes a policy plays (default: 100; of play 1)\n"
    "  --sample              draw the actions, where the policy is a distribution (not dqn, td3)\n"
    "  --render text         print each state; FILE.gif: all pictures; FILE.png: the last one\n"
    "  --onnx FILE           the file to write\n"
    "  --words N             how many words to print (default: 100)\n"
    "  --seed S              the seed of the draws (default: 1)\n"
    "  --temperature T       divides each logit (default: 1.0)\n"
    "  --name NAME           the one environment of the plug-in to try (default: all)\n"
    "  --options JSON        the environment's options, an object (default: {})\n"
    "  --steps N             how many random steps each environment makes (default: 1000)\n"
    "  --watch               show it again every second, until the run ends\n"
    "  --json                one JSON document: the list of workers, in `workers`; of list the runs, in\n"
    "                        `runs`; of check the whole job\n"
    "  --running             the runs that go on alone\n"
    "  --older-than AGE      those that ended so long ago: 12h, 30d or 6w (default: 30d)\n"
    "  --all                 remove the previous runs' folders as a whole\n"
    "  --dry-run             remove nothing; print what would be removed\n"
    "  --listen ADDRESS      127.0.0.1:PORT or a socket's path (default: 127.0.0.1:9478); with --token also\n"
    "                        an address that others reach\n"
    "  --token FILE          a file of mode 0600, whose first line a reader must show\n"
    "  --limit-s N           how many seconds one call of a plug-in may take (default: 60)\n"
    "\n"
    "A run's files are episodes.log, episodes.jsonl, job.json and checkpoints/NUMBER/. CHECKPOINT is one of\n"
    "these folders, or checkpoints/best; for evaluate, but not of a language model, also any safetensors\n"
    "file with the model's names. PLUGIN is the path of a shared object, with a / or ending in .so. RUN is\n"
    "a run's directory, or its job's name.\n"
    "\n"
    "Signals to a run: SIGTERM and SIGINT finish the round and end the job; a second one hurries. SIGHUP\n"
    "reads JOB.json again (/log takes effect at once, but not in a model-parallel job). SIGUSR1 takes a\n"
    "checkpoint, and goes on in new logs where they were renamed. A host other than the leader departs at\n"
    "the first SIGTERM: its workers start elsewhere.\n"
    "\n"
    "Exit status: 0 finished, solved or stopped; 64 usage; 65 corrupt data, or a broken contract;\n"
    "66 input missing; 69 device, Python or a package of it unavailable; 70 internal, or a plug-in crashed "
    "or hung;\n"
    "74 I/O; 75 already running; 77 permission; 78 bad job file or plug-in.\n";

static int command_schema(int argc, char **argv)
{
    if (argc > 2)
        return usage_error("schema takes at most one argument: %s", argv[2]);
    if (argc == 1 && job_write_schema(stdout) != 0 && !ferror(stdout)) { // flush_output reports a full output
        fprintf(stderr, "coalesced: cannot write the schema: %s\n", strerror(errno));
        return EX_SOFTWARE;
    }
    if (argc == 1)
        return 0;
    if (strcmp(argv[1], "man") == 0)
        job_write_manual(stdout);
    else if (strcmp(argv[1], "pointers") == 0)
        job_write_pointers(stdout);
    else
        return usage_error("schema: expected man or pointers, got %s", argv[1]);
    return 0;
}

/* The program that the supervisor executes; not a command for people. */
static int command_worker(int argc, char **argv)
{
    const bool is_started = fcntl(CONTROL_FD, F_GETFD) >= 0;
    if (is_started && argc == 5 && strcmp(argv[2], "link") == 0)
        return link_main();
    const struct role *role = argc == 5 && strcmp(argv[1], "--role") == 0 ? role_by_name(argv[2]) : NULL;
    if (role == NULL || !is_started)
        return usage_error("worker is started by the supervisor only");
    return worker_main(role);
}

static int run_command(int argc, char **argv)
{
    if (argc < 2)
        return usage_error("expected a command");
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return COMMAND_HELP;
    if (strcmp(name, "--version") == 0) {
        puts("coalesced " COALESCED_VERSION);
        return 0;
    }
    if (strcmp(name, "schema") == 0)
        return command_schema(argc - 1, argv + 1);
    if (strcmp(name, "worker") == 0)
        return command_worker(argc - 1, argv + 1);
    return command_run(argc - 1, argv + 1);
}

/* A descriptor from 0 to 2 that is closed would be given to the next file opened, which messages would then
 * overwrite. */
static void secure_standard_descriptors(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

/* Returns the exit code: EX_IOERR in place of 0 if the output did not reach standard output. */
static int flush_output(int code)
{
    const bool flushed = fflush(stdout) == 0;
    if (code != 0 || (flushed && !ferror(stdout)))
        return code;
    fprintf(stderr, "coalesced: cannot write to standard output: %s\n", strerror(errno));
    return EX_IOERR;
}

/* Nothing has begun yet that would have to be finished. */
static void stop_before_start(int number)
{
    (void)number;
    _exit(0);
}

/* Until the run takes its signals over (supervise.c), an order to stop ends the process, and orders
 * to read the job again or to rotate the logs wait. */
static void expect_signals(void)
{
    sigset_t later;
    sigemptyset(&later);
    sigaddset(&later, SIGHUP);
    sigaddset(&later, SIGUSR1);
    sigprocmask(SIG_BLOCK, &later, NULL);
    signal(SIGINT, stop_before_start);
    signal(SIGTERM, stop_before_start);
}

int main(int argc, char **argv)
{
    denormals_flush();
    if (argc > 1 && strcmp(argv[1], "run") == 0)
        expect_signals();
    secure_standard_descriptors();
    signal(SIGXFSZ, SIG_IGN); /* a file beyond RLIMIT_FSIZE is EFBIG to its writer, like a full disk */
    int code = run_command(argc, argv);
    if (code == COMMAND_HELP) {
        fputs(usage, stdout);
        code = 0;
    }
    return flush_output(code);
}
