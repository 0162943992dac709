// {fmt}'s functions, compiled once: Debian's package has them as a shared library only, which no program here is to need.
#include <fmt/format-inl.h>

template auto fmt::detail::thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto fmt::detail::decimal_point_impl(locale_ref) -> char;
