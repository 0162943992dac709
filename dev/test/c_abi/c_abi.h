// What the two files of this test share.
#pragma once

extern int passed, failed, skipped;

// counts; a failure is printed
void expect(int ok, const char* what);

// small calls on a GPU, against plain loops; skipped where there is none. numbers.c
void test_numbers(void);
