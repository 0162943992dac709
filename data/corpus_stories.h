// What the sample corpus tells: its words, turns of phrase and plots, in the notation of corpus_grammar.h.
// Edit freely: the grammar is checked whenever it is built, and says what is wrong and where.
//
// What a small model learns fast: characters' names begin with letters that begin nothing else here
// (sentences begin with H, I, N, O, S, T and Y), and children and animals have letters of their own. So who
// is meant can be found by looking back for a capital letter of the right kind.
#pragma once
#include <vector>

namespace llmc {

struct WordListSource {
    const char* name;
    const char* words;  // separated by ", "; after a slash an odd plural, or he or she for a name
};

struct RuleSource {
    const char* name;
    std::vector<const char*> texts;
};

inline const std::vector<WordListSource> kWordLists = {
    {"name", "Anna/she, Bella/she, Clara/she, Dora/she, Ella/she, Finn/he, Gus/he, Jack/he, Karl/he, Leo/he"},
    {"pet", "Milo/he, Pip/he, Quill/she, Rex/he, Uma/she, Vito/he, Wags/he, Zara/she"},
    {"few", "1, 2, 3"},
    {"some", "1, 2, 3"},
    {"animal",
     "fox, owl, bear, cat, dog, duck, frog, goat, hare, hen, lamb, mole, mouse, otter, pony, "
     "snail, toad, wolf, crow, seal"},
    {"trait",
     "kind, brave, shy, clever, sleepy, proud, gentle, hungry, lazy, merry, noisy, polite, quick, "
     "silly, tidy, young, wise, old"},
    {"look",
     "red, blue, green, golden, tiny, shiny, round, striped, soft, white, black, purple, yellow, "
     "heavy, odd, orange"},
    {"thing",
     "plum, shell, button, acorn, apple, bead, bell, candle, coin, cookie, egg, feather, flower, "
     "key, kite, lamp, leaf/leaves, marble, nut, pear, pebble, ribbon, spoon, stone, turnip"},
    {"bake", "pie, bun, cake, roll, muffin, waffle, tart, bagel"},
    {"tool", "rope, stick, net, ladder, scarf, spade, hook, pole"},
    {"water", "river, lake, pond, well, ditch, moat, swamp, sea"},
    {"box", "basket, bag, jar, hat, cup, drawer, pocket, sack, boot, bucket, chest, teapot"},
    {"place",
     "under the bridge, by the river, on the hill, in the barn, near the well, behind the mill, at "
     "the market, in the woods, by the lake, on the beach, under the oak, near the castle, in the "
     "cave, behind the school, at the harbor, in the garden"},
    {"weather", "sunny, rainy, windy, snowy, foggy, frosty, cloudy, misty, stormy, chilly, warm, quiet"},
    {"daytime", "morning, day, evening, night"},
    {"hour", "noon, sunset, dawn, midnight, teatime, dusk"},
    {"found", "found, saw, picked, counted, washed, hid"},
    {"feeling", "happy, glad, calm, cheerful, grateful, lucky, pleased"},
    {"gloom", "sad, cross, worried, upset, gloomy, lonely"},
    {"food", "soup, pie, toast, tea, cake, jam, bread, cheese, honey, porridge, milk, stew"},
    {"manner", "softly, loudly, slowly, happily, politely, twice, again, quickly"},
    {"act", "sang, danced, laughed, clapped, hummed, jumped, cheered, whistled"},
    {"gave", "gave, brought, sold, sent, threw"},
};

inline const std::vector<RuleSource> kRules = {
    {"end", {"So {B} {y=act} {z=manner}.", "Now {B} was {h=feeling}, and {A} {y=act} {z=manner}."}},
};

inline const std::vector<const char*> kPlots = {
    "One {w=weather} {d=daytime} {A=name} met {B=pet} the {t=trait} {k=animal} {p=place}. {A} {s=found} "
    "{n=few} {c=look} {o#n=thing} and {B} {r=found} {m=some}, so they had {n+m}. {A.He} thanked {B}, and {B} "
    "{y=act} {z=manner}.",

    "{A=name} was {G=gloom}. {A.His} {c=look} {o=thing} was lost! {B=pet} the {t=trait} {k=animal} looked "
    "{p=place}. It was in {e.a=look} {x=box}. \"Here it is, {A},\" said {B}. \"Oh, {B},\" said {A}, \"you "
    "are {u=trait}!\"",

    "{A=name} and {B=pet} the {t=trait} {k=animal} baked {c=look} {b.s=bake} {p=place}. {A} made {n=few} and "
    "{B} made {m=some}, so they had {n+m}. Then {A} ate {f=food} and {B} {y=act} {z=manner}.",

    "{B=pet} the {t=trait} {k=animal} fell into {c.a=look} {W=water}. \"Help, {A=name}!\" cried {B}. So {A} "
    "pulled {B} out with {e.a=look} {T=tool}. {?end}",

    "\"I hid {c.a=look} {o=thing} in my {x=box}, {B=pet},\" said {A=name}. \"Is it {p=place}?\" asked {B} "
    "the {t=trait} {k=animal}. \"No, {B},\" said {A}, \"it is {q=place}.\" {?end}",

    "Hello {A=name}, come and see me {p=place} at {D=hour}. You bring {n=few} {c=look} {o#n=thing} and I "
    "bring {m=some}, so we have {n+m}. Your {t=trait} {k=animal}, {B=pet}. So {A} {y=act} {z=manner} and met "
    "{B}.",

    "{A=name} had {c=look} {o.s=thing} in {e.a=look} {x=box}. {B=pet} the {t=trait} {k=animal} took {n=few} "
    "and {A} took {m=some}, so {n+m} were gone. {A} was {h=feeling}, and {B} {y=act} {z=manner}. \"Oh, "
    "{B}!\" said {A}.",

    "It was {w=weather} {p=place}. {A=name} and {B=pet} the {t=trait} {k=animal} saw {c=look} {o.s=thing}. "
    "\"Take some, {A},\" said {B}. {A} took {n=few} and {B} took {m=some}, so {n+m} were in {e.a=look} "
    "{x=box}. {A} ate {f=food}.",
};

}  // namespace llmc
