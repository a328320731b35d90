/* The choice of an instruction set: the name in COALESCED_ISA, or else the best set of this processor. */
#include "kernels/lanes/isa.h"
#include "test/workplace.h"

#include <check.h>
#include <stdlib.h>

START_TEST(a_name_chooses_its_set)
{
    static const struct {
        const char *name;
        enum isa isa;
    } sets[] = {{"baseline", ISA_BASELINE}, {"avx2", ISA_AVX2}, {"avx512", ISA_AVX512}};
    struct error error = {0};
    enum isa best = ISA_BASELINE, chosen;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        setenv("COALESCED_ISA", sets[i].name, 1);
        const enum status status = isa_choose(&chosen, &error);
        ck_assert(status == STATUS_OK || (status == STATUS_UNAVAILABLE && sets[i].isa != ISA_BASELINE));
        if (status != STATUS_OK)
            continue;
        ck_assert_int_eq(chosen, sets[i].isa);
        best = chosen;
    }
    unsetenv("COALESCED_ISA");
    ck_assert_int_eq(isa_choose(&chosen, &error), STATUS_OK);
    ck_assert_int_eq(chosen, best);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("isa");
    TCase *choice = tcase_create("choice");
    tcase_add_test(choice, a_name_chooses_its_set);
    suite_add_tcase(suite, choice);
    return suite_run(suite);
}
