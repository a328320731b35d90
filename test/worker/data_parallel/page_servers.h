/* Real pservers without a supervisor, for trainers that a test plays byte by byte
 * (test/worker/data_parallel/page_trainer.h). For test programs, which each use what they need. */
#ifndef TEST_WORKER_DATA_PARALLEL_PAGE_SERVERS_H
#define TEST_WORKER_DATA_PARALLEL_PAGE_SERVERS_H

#include "test/worker/bare_worker.h"
#include "test/worker/data_parallel/page_trainer.h"

#include <sys/stat.h>

enum { PAGE_SERVERS_MAX = 2, PAGE_INCARNATION = 100, PAGE_WIDTH = 2, PAGE_CHANNELS = 3, PAGE_CLASSES = 10 };

/* Of which test/worker/data_parallel/page_trainer.h has the same model. */
#define PAGE_JOB                                                                                             \
    "{\"kind\":\"parameter-server\",\"name\":\"page\",\"device\":\"cpu\",\"transport\":\"inline\","          \
    "\"model\":{\"name\":\"resnet18\",\"classes\":10,\"width\":2},\"server\":{\"count\":%u},"                \
    "\"trainers\":{\"count\":%u,\"batch\":2,\"threads\":1},\"optimizer\":{\"lr\":0.1,\"momentum\":0.9},"     \
    "%s}"

static struct {
    char folder[64], addresses[PAGE_SERVERS_MAX][CONTROL_ADDRESS_BYTES + 8];
    struct bare_worker servers[PAGE_SERVERS_MAX];
    struct page_model model;
    struct page_message message;
} page;

static inline void page_open_folder(void)
{
    memset(&page, 0, sizeof page);
    folder_make(page.folder);
    page_resnet18(&page.model, PAGE_WIDTH, PAGE_CHANNELS, PAGE_CLASSES);
}

static inline void page_serve(unsigned servers, unsigned trainers, const char *more)
{
    char job[1024];
    ck_assert_int_lt(snprintf(job, sizeof job, PAGE_JOB, servers, trainers, more), (int)sizeof job);
    for (unsigned i = 0; i < servers; i++) {
        struct control_start *start = &page.servers[i].start;
        *start = (struct control_start){.worker = (uint16_t)i,
                                        .role = WIRE_ROLE_PSERVER,
                                        .incarnation = PAGE_INCARNATION,
                                        .secret = PAGE_SECRET,
                                        .generation = 1};
        snprintf(start->address, sizeof start->address, "ipc://%s/s", page.folder);
        snprintf(start->run_dir, sizeof start->run_dir, "%s/run", page.folder);
        mkdir(start->run_dir, 0700);
        bare_worker_start(&page.servers[i], "pserver", job);
        bare_worker_expect(&page.servers[i], CONTROL_BOUND);
        if (i > 0) /* it dials the servers below */
            bare_worker_order(&page.servers[i], CONTROL_CONNECT);
        bare_worker_expect(&page.servers[i], CONTROL_READY);
        bare_worker_address(&page.servers[i], page.addresses[i]);
    }
}

/* Update `number` is reported, and then in the logs. */
static inline void page_updated(uint64_t number)
{
    bare_worker_expect(&page.servers[0], CONTROL_UPDATE);
    ck_assert_uint_eq(page.servers[0].message.body.update.update, number);
    bare_worker_logged(&page.servers[0], number);
}

static inline void page_close_folder(void)
{
    for (unsigned i = 0; i < PAGE_SERVERS_MAX; i++)
        bare_worker_kill(&page.servers[i]);
    folder_remove(page.folder);
}

#endif
