"""All families of the set, imported for the pairs that they enter."""

import pair_bert
import pair_eighteenth
import pair_eighteenth_losses
import pair_eighteenth_rest
import pair_eighteenth_scans
import pair_eighteenth_sights
import pair_eighth
import pair_eleventh
import pair_fifteenth
import pair_fifteenth_parts
import pair_fifteenth_rest
import pair_fifth
import pair_fifth_parts
import pair_fifth_training
import pair_fourteenth
import pair_fourteenth_readers
import pair_fourteenth_scans
import pair_fourteenth_sights
import pair_fourteenth_sounds
import pair_fourteenth_tools
import pair_fourth
import pair_fourth_parts
import pair_fourth_training
import pair_gpt
import pair_images
import pair_llama
import pair_losses
import pair_nineteenth
import pair_nineteenth_flows
import pair_nineteenth_parts
import pair_nineteenth_shapes
import pair_nineteenth_sights
import pair_nineteenth_training
import pair_ninth
import pair_routes
import pair_second
import pair_sequences
import pair_seventeenth
import pair_seventh
import pair_seventh_parts
import pair_seventh_training
import pair_sixteenth
import pair_sixteenth_rest
import pair_sixteenth_states
import pair_sixth
import pair_sixth_masks
import pair_sixth_parts
import pair_sixth_training
import pair_t5
import pair_tenth
import pair_tenth_layouts
import pair_tenth_parts
import pair_third
import pair_third_losses
import pair_third_parts
import pair_thirteenth
import pair_thirtieth
import pair_thirtieth_rest
import pair_thirtieth_sights
import pair_thirtieth_words
import pair_thirtyfifth
import pair_thirtyfirst
import pair_thirtyfourth
import pair_thirtyfourth_experts
import pair_thirtyfourth_readers
import pair_thirtyfourth_sights
import pair_thirtysecond
import pair_thirtysecond_readers
import pair_thirtysixth
import pair_thirtysixth_rest
import pair_thirtythird
import pair_twelfth
import pair_twelfth_loops
import pair_twelfth_losses
import pair_twelfth_training
import pair_twentieth
import pair_twentyeighth
import pair_twentyeighth_rest
import pair_twentyfifth
import pair_twentyfifth_sights
import pair_twentyfifth_sounds
import pair_twentyfifth_training
import pair_twentyfirst
import pair_twentyfirst_experts
import pair_twentyfirst_models
import pair_twentyfirst_parts
import pair_twentyfirst_roles
import pair_twentyfourth
import pair_twentyfourth_frames
import pair_twentyfourth_training
import pair_twentyninth
import pair_twentyninth_actions
import pair_twentyninth_atoms
import pair_twentyninth_places
import pair_twentyninth_rest
import pair_twentyninth_sights
import pair_twentyninth_sounds
import pair_twentysecond
import pair_twentysecond_sequences
import pair_twentysecond_sights
import pair_twentysecond_training
import pair_twentysecond_wiring
import pair_twentyseventh
import pair_twentyseventh_atoms
import pair_twentyseventh_experts
import pair_twentyseventh_rest
import pair_twentyseventh_sights
import pair_twentyseventh_states
import pair_twentysixth
import pair_twentysixth_ports
import pair_twentysixth_rest
import pair_twentysixth_shards
import pair_twentysixth_sights
import pair_twentythird
import pair_twentythird_callers
import pair_twentythird_exchanged
import pair_twentythird_readers
import pair_twentythird_ways

FAMILIES = (
    pair_gpt, pair_llama, pair_bert, pair_t5, pair_images, pair_sequences, pair_routes, pair_losses, pair_second,
    pair_third, pair_third_parts, pair_third_losses,
    pair_fourth, pair_fourth_parts, pair_fourth_training,
    pair_fifth, pair_fifth_parts, pair_fifth_training,
    pair_sixth, pair_sixth_masks, pair_sixth_parts, pair_sixth_training,
    pair_seventh, pair_seventh_parts, pair_seventh_training,
    pair_eighth,
    pair_ninth,
    pair_tenth, pair_tenth_parts, pair_tenth_layouts,
    pair_eleventh,
    pair_twelfth, pair_twelfth_loops, pair_twelfth_training, pair_twelfth_losses,
    pair_thirteenth,
    pair_fourteenth, pair_fourteenth_readers, pair_fourteenth_sights, pair_fourteenth_scans, pair_fourteenth_sounds, pair_fourteenth_tools,
    pair_fifteenth, pair_fifteenth_parts, pair_fifteenth_rest,
    pair_sixteenth, pair_sixteenth_rest, pair_sixteenth_states,
    pair_seventeenth,
    pair_eighteenth, pair_eighteenth_losses, pair_eighteenth_rest, pair_eighteenth_scans, pair_eighteenth_sights,
    pair_twentieth,
    pair_twentyfirst, pair_twentyfirst_experts, pair_twentyfirst_models, pair_twentyfirst_parts, pair_twentyfirst_roles,
    pair_twentysecond, pair_twentysecond_sequences, pair_twentysecond_sights,
    pair_twentysecond_training, pair_twentysecond_wiring,
    pair_twentythird, pair_twentythird_readers, pair_twentythird_ways, pair_twentythird_callers, pair_twentythird_exchanged,
    pair_twentyfourth, pair_twentyfourth_frames, pair_twentyfourth_training,
    pair_twentyfifth, pair_twentyfifth_sights, pair_twentyfifth_training, pair_twentyfifth_sounds,
    pair_twentysixth, pair_twentysixth_shards, pair_twentysixth_sights, pair_twentysixth_rest, pair_twentysixth_ports,
    pair_twentyseventh, pair_twentyseventh_states, pair_twentyseventh_experts, pair_twentyseventh_sights, pair_twentyseventh_rest,
    pair_twentyseventh_atoms, pair_twentyeighth, pair_twentyeighth_rest,
    pair_twentyninth, pair_twentyninth_atoms, pair_twentyninth_sounds, pair_twentyninth_places, pair_twentyninth_sights, pair_twentyninth_rest,
    pair_twentyninth_actions,
    pair_thirtieth, pair_thirtieth_words, pair_thirtieth_rest, pair_thirtieth_sights, pair_thirtyfirst,
    pair_thirtysecond, pair_thirtysecond_readers, pair_thirtythird,
    pair_thirtyfourth, pair_thirtyfourth_experts, pair_thirtyfourth_readers, pair_thirtyfourth_sights,
    pair_thirtyfifth, pair_thirtysixth, pair_thirtysixth_rest,
    pair_nineteenth, pair_nineteenth_flows, pair_nineteenth_shapes, pair_nineteenth_sights, pair_nineteenth_parts, pair_nineteenth_training,
)  # fmt: skip
